"""What trained models compute at every scheme, beside ``transformers`` in float32."""

from __future__ import annotations

import pytest
from real_model import SCHEMES, RealModel  # which puts scripts/bench on the path

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

# Mean KL in nats, and the share of likeliest tokens that stay. The smaller a model, the more a scheme
# takes from it: SmolLM2's figures hold for all that have none of their own. docs/quantization.md has
# what is measured; here there is half as much again.
LIMITS = {
    "bf16": (0.002, 0.97),
    "fp16": (0.002, 0.97),
    "int8": (0.028, 0.88),
    "nf4": (0.48, 0.60),
    "int4": (0.48, 0.60),
}
LIMITS_OF = {
    "gemma3-270m": {"int4": (0.85, 0.5)},
    "qwen2.5-coder-1.5b": {"int8": (0.008, 0.95), "nf4": (0.07, 0.82), "int4": (0.1, 0.78)},
    "qwen2.5-coder-0.5b": {"int8": (0.008, 0.95), "nf4": (0.16, 0.75), "int4": (0.22, 0.70)},
}
TOKENS = 384
"""Of each text."""
TIE = 0.2
"""Logits closer than this are alike: two ways of rounding 16-bit numbers choose either."""


@pytest.mark.parametrize("quant", SCHEMES)
def test_the_next_tokens_are_close_to_those_of_transformers(model: RealModel, quant: str) -> None:
    from fidelity import measure

    distance = measure(model.file(quant), model.reference, num_tokens=TOKENS).distance
    assert distance is not None
    print(f"{model.name} {quant}: {distance}")
    divergence, same_top = LIMITS_OF.get(model.name, {}).get(quant, LIMITS[quant])
    assert distance.divergence_nats.value < divergence
    assert distance.same_top.value > same_top


@pytest.mark.parametrize("quant", ["bf16", "fp16"])
def test_greedy_answers_are_those_of_transformers_wherever_it_is_sure(
    model: RealModel, quant: str
) -> None:
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams

    prompts = model.prompts()
    with LLM(model.file(quant), device="cpu", max_context=512) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=48, temperature=0.0))
    num_tokens, gaps = 0, []
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.token_ids
        # The reference reads the whole answer, so that one tie does not end the comparison.
        logits = model.reference.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        for row, token_id in zip(logits, answer, strict=True):
            num_tokens += 1
            if gap := float(row.max() - row[token_id]):
                gaps.append(gap)
    print(f"{model.name} {quant}: {num_tokens} tokens, {len(gaps)} chosen at ties of {gaps}")
    assert num_tokens > 40
    assert max(gaps, default=0.0) < TIE
    assert len(gaps) <= num_tokens // 20
