"""Models with windows in the engine: long texts in small pools, answers of transformers.

Windows are of 9 tokens, blocks of 4, texts of more than 100: nearly all that layers with a window
ever kept of them has been given back and written over by others when the last token comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_answers import EXACT_DEVICES, answers_of, expected_tokens, random_tokens
from model_pairs import make_pair

from zse.engine.core import EngineCore
from zse.engine.request import Request, SamplingParams
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.types import StepBatch

__all__ = ["make_pair"]

NEW_TOKENS = 16
WINDOW, BLOCK = 9, 4
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt_oss": {},
    "gemma3": {},
    "olmo3": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {"sliding_window": WINDOW},
    "gemma4": {},
}
"""Of each family its tiny configuration; all layers of Mistral have the window."""


def open_core(pair: Any, device: dict[str, Any], **changes: Any) -> EngineCore:
    sizes = {"num_blocks": 72, "max_sequences": 3, "max_batch_tokens": 24}
    options = load_options(**{**device, "block_size": BLOCK, "threads": 1, **sizes, **changes})
    return EngineCore(load_runner(pair.path, options), options)


@pytest.mark.parametrize("device", EXACT_DEVICES, ids=lambda device: device["device"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prefixes_chunks_and_preemptions_change_no_answer(
    family: str, device: dict[str, Any], make_pair: Callable[..., Any]
) -> None:
    pair = make_pair(family, "fp32", eos_token_id=None, **FAMILIES[family])
    shared = random_tokens(42, 1)
    prompts = [shared + random_tokens(count, count) for count in (71, 78, 70, 2)]
    expected = [expected_tokens(pair, prompt, NEW_TOKENS) for prompt in prompts]
    core = open_core(pair, device)
    (group,) = core.runner.windows
    assert group.num_blocks < core.runner.num_blocks
    for name in ("first", "second"):
        assert answers_of(core, prompts, name, NEW_TOKENS) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    core.close()


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_choices_of_one_prompt_share_its_window(
    prefix_cache: bool, make_pair: Callable[..., Any]
) -> None:
    pair = make_pair("gemma3", "fp32", eos_token_id=None)
    prompt = random_tokens(61, 5)
    expected = expected_tokens(pair, prompt, NEW_TOKENS)
    core = open_core(pair, EXACT_DEVICES[1], prefix_cache=prefix_cache, max_batch_tokens=64)
    assert answers_of(core, [prompt], "request", NEW_TOKENS, n=3) == [expected] * 3
    assert core.stats().prefix_hit_tokens == 2 * 60
    core.close()


@pytest.mark.parametrize("device", EXACT_DEVICES, ids=lambda device: device["device"])
def test_a_sequence_holds_no_more_than_its_window_however_long_it_grows(
    device: dict[str, Any], make_pair: Callable[..., Any]
) -> None:
    pair = make_pair("gpt_oss", "fp32", eos_token_id=None)
    core = open_core(pair, device, prefix_cache=False)
    held: list[int] = []
    submit = core.runner.submit

    def watching(batch: StepBatch) -> Any:
        (chunk,) = batch.chunks
        if chunk.kind == "decode":
            held.append(len(chunk.windows[0].blocks))
        return submit(batch)

    core.runner.submit = watching  # type: ignore[method-assign]
    prompt = random_tokens(100, 3)
    (answer,) = answers_of(core, [prompt], "long", 120)
    assert answer == expected_tokens(pair, prompt, 120)
    assert max(held) <= -(-WINDOW // BLOCK) + 2
    core.close()


def test_the_same_memory_holds_more_tokens_than_whole_sequences_would(
    make_pair: Callable[..., Any],
) -> None:
    pair = make_pair("mistral", "fp32", eos_token_id=None, sliding_window=WINDOW)
    whole = make_pair("mistral", "fp32", eos_token_id=None, sliding_window=None)
    sizes = {"num_blocks": 200, "max_sequences": 1}
    held = [open_core(one, EXACT_DEVICES[1], **sizes) for one in (pair, whole)]
    windowed, plain = (core.runner.memory_bytes()["kv_cache"] for core in held)
    assert windowed < plain / 4
    for core in held:
        core.close()


def test_a_request_that_is_given_up_in_the_middle_of_its_prompt_leaves_nothing(
    make_pair: Callable[..., Any],
) -> None:
    core = open_core(make_pair("gemma3", "fp32", eos_token_id=None), EXACT_DEVICES[0])
    params = SamplingParams(max_tokens=4)
    prompt = random_tokens(90, 7)
    core.add_request(Request(request_id="gone", prompt_token_ids=prompt, params=params))
    core.step()
    core.abort("gone")
    core.step()
    core.check_consistency()
    core.cache.flush()
    assert core.cache.num_available == core.cache.num_blocks
    core.close()
