"""A model with states in the engine: prefixes reused, sequences preempted, answers of transformers.

Prompts share a beginning and the pool holds few of them, so states are kept, restored, given up
and computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import EXACT_DEVICES, answers_of, expected_tokens, random_tokens
from model_pairs import make_pair

from zse.engine.core import EngineCore
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_pair"]

NEW_TOKENS = 20


@pytest.mark.parametrize("device", EXACT_DEVICES, ids=lambda device: device["device"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_shared_prefixes_and_preemptions_change_no_answer(
    family: str, device: dict[str, Any], make_pair: Callable[..., Any]
) -> None:
    pair = make_pair(family, "fp32", eos_token_id=None)
    shared = random_tokens(21, 1)
    prompts = [shared + random_tokens(count, count) for count in (2, 9, 4, 13)]
    expected = [expected_tokens(pair, prompt, NEW_TOKENS) for prompt in prompts]
    options = load_options(
        **device, block_size=4, num_blocks=17, max_sequences=3, max_batch_tokens=16, threads=1
    )
    core = EngineCore(load_runner(pair.path, options), options)
    for name in ("first", "second"):
        assert answers_of(core, prompts, name, NEW_TOKENS) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    core.close()
