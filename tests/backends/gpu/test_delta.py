"""Linear attention on the GPU backend, in the interpreter: the answers of torch, state by state."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from interpreted_runner import open_runner
from logits import as_tensor
from tiny_shape import TINY

from zse.backends.gpu.budget import MemoryBudget
from zse.backends.states import MOST_DRAFT_STATES, states_of
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import EngineError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.models.runner import ModelRunner

TOLERANCE = 5e-2
SHAPE = {
    **TINY,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
TOKENS = [5, 17, 70, 33, 9, 60]
GREEDY = [SamplingRow(temperature=0.0)]


@pytest.fixture
def path(make_pair: Callable[..., object]) -> Path:
    return make_pair("qwen3_5", "int8", **SHAPE).path


@pytest.fixture
def runner(path: Path) -> Iterator[ModelRunner]:
    runner = open_runner(path, exact_activations=True)
    yield runner
    runner.close()


def next_tokens(runner: ModelRunner, *chunks: SequenceChunk) -> list[int]:
    answers = runner.execute(StepBatch(chunks=chunks, sampling=[GREEDY] * len(chunks)))
    return [answer[0].token_id for answer in answers]


def chunk(
    tokens: list[int], start: int, slot: int = 0, block: int = 2, **copies: int
) -> SequenceChunk:
    return SequenceChunk(slot, tokens, start, (block,), kind_of(len(tokens)), **copies)


@pytest.fixture
def plain(path: Path) -> Iterator[ModelRunner]:
    """The same on torch."""
    options = load_options(device="torch", num_blocks=8, max_sequences=2, threads=1)
    runner = load_runner(path, options)
    yield runner
    runner.close()


def test_a_prompt_and_tokens_after_it_have_the_logits_of_torch(
    plain: ModelRunner, runner: ModelRunner
) -> None:
    expected = as_tensor(plain.logits(TOKENS))
    for chunk_tokens in (6, 1):
        found = as_tensor(runner.logits(TOKENS, chunk_tokens=chunk_tokens))
        assert float((found - expected).abs().max() / expected.abs().max()) < TOLERANCE


def test_sequences_of_one_step_keep_their_states_apart(
    plain: ModelRunner, runner: ModelRunner
) -> None:
    both = (chunk(TOKENS, 0, 0, 2), chunk(TOKENS[::-1], 0, 1, 5))
    first = next_tokens(plain, *both)
    assert next_tokens(runner, *both) == first
    # A token of the one beside a prompt of the other, in a slot that was used before.
    mixed = (chunk([first[1]], 6, 1, 5), chunk(TOKENS, 0, 0, 2))
    assert next_tokens(runner, *mixed) == next_tokens(plain, *mixed)


def test_a_state_is_kept_in_a_checkpoint_and_taken_from_it(
    plain: ModelRunner, runner: ModelRunner
) -> None:
    expected = next_tokens(plain, chunk(TOKENS, 0))
    next_tokens(runner, chunk(TOKENS[:5], 0, saved_to=1))
    next_tokens(runner, chunk(TOKENS[3:4], 0, block=5))
    assert next_tokens(runner, chunk(TOKENS[5:], 5, slot=1, restored_from=1)) == expected


def test_drafts_are_refused(runner: ModelRunner) -> None:
    drafts = SequenceChunk(0, [5, 6], 0, (2,), "verify")
    with pytest.raises(EngineError, match="cannot go back"):
        runner.submit(StepBatch(chunks=[drafts], sampling=[GREEDY * 2]))


def test_a_sequence_goes_on_behind_the_drafts_that_stood(path: Path) -> None:
    """Three drafts beside a prompt, then a token: the answers of single tokens."""
    right = 1
    with closing(open_runner(path, exact_activations=True, speculate="suffix")) as runner:
        expected = [*next_tokens(runner, chunk(TOKENS, 0))]
        for position in range(6, 12):
            expected += next_tokens(runner, chunk(expected[-1:], position))
        assert next_tokens(runner, chunk(TOKENS, 0, slot=1, block=5)) == expected[:1]
        start = 6
        for _ in range(2):  # the second time its state is where a draft has left it
            known = expected[start - 6]
            drafts = expected[start - 5 : start - 5 + right] + [71, 0, 3][right:]
            check = SequenceChunk(1, [known, *drafts], start, (5,), "verify")
            other = chunk(TOKENS[:3], 0, slot=0)
            pending = runner.submit(StepBatch(chunks=[check, other], sampling=[GREEDY * 4, GREEDY]))
            answer = [token.token_id for token in pending.wait()[0]]
            assert pending.wait()[0][-1].token_id == answer[-1]  # settled once
            stood = len(answer) - 1
            assert stood >= right
            assert answer == expected[start - 5 : start - 5 + len(answer)]
            start += len(answer)
            if start > 9:
                break
        last = chunk(expected[start - 6 : start - 5], start, slot=1, block=5)
        assert next_tokens(runner, last) == expected[start - 5 : start - 4]
        slots = runner._backend._draft_states._slots
        assert sorted([*slots._own, *slots._free]) == list(range(runner._backend.states.num_slots))
        assert len(slots._free) == MOST_DRAFT_STATES


def test_a_step_behind_checked_drafts_waits_for_what_became_of_them(path: Path) -> None:
    """Nobody has asked for the tokens when the sequence's slot is somebody else's."""
    with closing(open_runner(path, exact_activations=True, speculate="suffix")) as runner:
        expected = next_tokens(runner, chunk(TOKENS[::-1], 0))
        next_tokens(runner, chunk(TOKENS, 0))
        check = SequenceChunk(0, [4, 5, 6], 6, (2,), "verify")
        pending = runner.submit(StepBatch(chunks=[check], sampling=[GREEDY * 3]))
        assert next_tokens(runner, chunk(TOKENS[:0:-1], 0)) is not None
        assert next_tokens(runner, chunk(TOKENS[:1], 5)) == expected
        assert pending.wait()


def test_states_are_counted(runner: ModelRunner) -> None:
    layer = 4 * (64 * 64 + 4 * 3 * 64)
    assert runner.memory_bytes()["states"] == layer * (2 + 1 + 2)


def test_where_memory_is_short_fewer_sequences_run(
    path: Path, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = states_of(runner.spec, load_options(max_sequences=2))
    monkeypatch.setattr(MemoryBudget, "for_cache", 2 * states.length_bytes - 1)
    with closing(open_runner(path, exact_activations=True)) as short:
        assert (runner.most_sequences, short.most_sequences) == (2, 1)
        assert short.memory_bytes()["states"] == states.slot_bytes * (1 + 1 + 1)
