"""Greedy answers of an engine over a real model, and those of transformers beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from family_shapes import SHAPE

from zse.engine.request import Request, SamplingParams

if TYPE_CHECKING:
    from typing import TypeAlias

    from zse.engine.core import EngineCore

    Told: TypeAlias = dict[tuple[str, int], list[Any]]

EXACT_DEVICES: list[dict[str, Any]] = [
    {"device": "torch"},
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
]


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SHAPE["vocab_size"], (count,), generator=generator).tolist()


def expected_tokens(pair: Any, prompt: list[int], new_tokens: int) -> list[int]:
    generated = pair.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=transformers.GenerationConfig(
            do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
        ),
    )
    return getattr(generated, "sequences", generated)[0, len(prompt) :].tolist()


def answers_of(
    core: EngineCore, prompts: list[list[int]], name: str, new_tokens: int, *, n: int = 1
) -> list[list[int]]:
    """Return every choice's tokens, the owners of blocks checked after each step."""
    params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, n=n)
    for index, prompt in enumerate(prompts):
        core.add_request(
            Request(request_id=f"{name}{index}", prompt_token_ids=prompt, params=params)
        )
    found: dict[tuple[str, int], list[int]] = {
        (f"{name}{index}", choice): [] for index in range(len(prompts)) for choice in range(n)
    }
    while core.has_work:
        for event in core.step():
            if event.token_id is not None:
                found[event.request_id, event.index].append(event.token_id)
        core.check_consistency()
    return list(found.values())


def told_answers(core: EngineCore, requests: list[Request]) -> Told:
    """Return of each choice its tokens, their log-probabilities and how it ended."""
    for request in requests:
        core.add_request(request)
    found: Told = {}
    while core.has_work:
        for event in core.step():
            told = (event.token_id, event.logprob, tuple(event.top), event.finish_reason)
            found.setdefault((event.request_id, event.index), []).append(told)
        core.check_consistency()
    return found
