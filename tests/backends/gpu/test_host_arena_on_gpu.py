"""Prefixes that a GPU's pool gave up come back from pinned host memory, byte by byte."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.gpu
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


def answers(path: Path, prompts: list[list[int]], **changes: Any) -> tuple[list[list[int]], int]:
    """Answer prompts one behind the other; return their tokens, and those that came back."""
    settings = load_settings()
    options = load_options(
        device="cuda", num_blocks=16, max_sequences=4, deterministic=True,
        kernels=settings.serve.load.device.kernels, **changes,
    )  # fmt: skip
    runner = load_runner(path, options, cache_dir=settings.cache_dir)
    core = make_core(runner, options)
    if (tier := core.cache.tier) is not None:
        tier._host.wait_until_pinned()
    found = []
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        core.add_request(Request(request_id=f"r{number}", prompt_token_ids=prompt, params=params))
        tokens = []
        while core.has_work:
            tokens += [event.token_id for event in core.step()]
        found.append(tokens)
    core.check_consistency()
    hits = core.stats().host_hit_tokens
    core.close()
    return found, hits


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
def test_answers_are_those_of_an_engine_that_computed_all_again(
    kv_dtype: str, make_pair: Callable[..., Any]
) -> None:
    path, rng = make_pair("llama", "int8", **HEADS).path, random.Random(5)
    texts = [[rng.randrange(3, 300) for _ in range(200)] for _ in range(4)]
    prompts = [texts[index] for index in (0, 1, 2, 0, 3, 1, 2, 0)]
    expected, none = answers(path, prompts, kv_dtype=kv_dtype)
    found, hits = answers(path, prompts, kv_dtype=kv_dtype, prefix_host_gib=0.05)
    assert none == 0
    assert hits >= 3 * 192
    assert found == expected
