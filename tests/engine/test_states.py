"""A model with states in the engine: prefixes reused, sequences preempted, answers of transformers.

Prompts share a beginning and the pool holds few of them, so states are kept, restored, given up
and computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import SHAPE
from model_pairs import make_pair

from zse.engine.core import EngineCore
from zse.engine.request import Request, SamplingParams
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_pair"]

DEVICES: list[dict[str, Any]] = [
    {"device": "torch"},
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
]
NEW_TOKENS = 20


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPE["vocab_size"], (count,), generator=generator).tolist()


def expected_tokens(pair: Any, prompt: list[int]) -> list[int]:
    generated = pair.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0
        ),
    )
    return generated[0, len(prompt) :].tolist()


def answers_of(core: EngineCore, prompts: list[list[int]], name: str) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        core.add_request(
            Request(request_id=f"{name}{index}", prompt_token_ids=prompt, params=params)
        )
    found: dict[str, list[int]] = {f"{name}{index}": [] for index in range(len(prompts))}
    while core.has_work:
        for event in core.step():
            if event.token_id is not None:
                found[event.request_id].append(event.token_id)
        core.check_consistency()
    return list(found.values())


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device["device"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_shared_prefixes_and_preemptions_change_no_answer(
    family: str, device: dict[str, Any], make_pair: Callable[..., Any]
) -> None:
    pair = make_pair(family, "fp32", eos_token_id=None)
    shared = random_tokens(21, 1)
    prompts = [shared + random_tokens(count, count) for count in (2, 9, 4, 13)]
    expected = [expected_tokens(pair, prompt) for prompt in prompts]
    options = load_options(
        **device, block_size=4, num_blocks=17, max_sequences=3, max_batch_tokens=16, threads=1
    )
    core = EngineCore(load_runner(pair.path, options), options)
    for name in ("first", "second"):
        assert answers_of(core, prompts, name) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    core.close()
