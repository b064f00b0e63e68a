"""Which states a head is given with which tokens, whatever was guessed, dropped or computed again."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from zse.backends.types import SampledToken
from zse.engine.drafting.head_drafter import HeadDrafter
from zse.engine.drafting.token_states import TokenStates

if TYPE_CHECKING:
    from zse.backends.types import StepBatch

PARAMS = SimpleNamespace(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


class Known(SimpleNamespace):
    """A sequence as far as drafters look at it."""

    __hash__ = object.__hash__


class CheckingHead:
    """A head of one number a state: that of token i is i, and of a guess it says so."""

    num_blocks, block_size, vocab_size, max_position = 64, 4, 1000, 200
    windows = ()

    def __init__(self) -> None:
        self.cells: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.num_read = 0

    def execute(self, batch: StepBatch) -> list[list[SampledToken]]:
        answers = []
        for chunk, rows in zip(batch.chunks, batch.sampling, strict=True):
            assert chunk.joined is not None
            places = [round(place) for (place,) in struct.iter_unpack("f", chunk.joined)]
            if chunk.start_position == 0:
                self.first[chunk.sequence_slot] = places[0]
            offset = self.first[chunk.sequence_slot]
            for index, (token, place) in enumerate(zip(chunk.token_ids, places, strict=True)):
                assert place == offset + chunk.start_position + index
                assert token == 100 + place + 1 or len(places) == 1  # of token i - 1; or a guess
            self.num_read += len(places)
            guess = 100 + places[-1] + 2
            answers.append([SampledToken(guess, hidden=[places[-1] + 1.0])] if rows else [])
        return answers

    def close(self) -> None:
        """Nothing is held."""


def sequence_of(num_tokens: int) -> Any:
    """Token i of a sequence is 100 + i, so that the head is always right."""
    return Known(
        token_ids=list(range(100, 100 + num_tokens)),
        output_token_ids=[],
        num_tokens=num_tokens,
        most_tokens=190,
        seed=1,
        states=TokenStates(1, most=20),
        request=SimpleNamespace(adapter=None, params=PARAMS),
    )


def compute(sequence: Any, start: int, end: int) -> None:
    room = sequence.states.room(start, end - start)
    room[:] = struct.pack(f"{end - start}f", *range(start, end))


def drafter_over(head: CheckingHead, num_sequences: int = 2) -> HeadDrafter:
    runner: Any = head
    return HeadDrafter(
        runner,
        most_tokens=64,
        num_sequences=num_sequences,
        vocab_size=1000,
        close_file=lambda: None,
    )


def test_each_token_comes_with_the_state_of_the_token_before_it() -> None:
    for seed in range(60):
        generator = random.Random(seed)
        head = CheckingHead()
        drafter, sequence = drafter_over(head), sequence_of(9)
        compute(sequence, 0, 8)
        for _ in range(25):
            (offer,) = drafter.offers([sequence])
            assert offer.most > 0
            if generator.random() < 0.6:
                count = generator.randint(1, 4)
                (drafts,) = drafter.propose([(sequence, count)])
                known = len(sequence.token_ids)
                assert drafts == list(range(100 + known, 100 + known + count))
            start = len(sequence.token_ids) - 1
            if generator.random() < 0.1:
                start = generator.choice([0, start // 2])  # preempted: computed again
            more = generator.randint(1, 4)
            compute(sequence, start, len(sequence.token_ids) - 1 + more)
            added = range(len(sequence.token_ids), len(sequence.token_ids) + more)
            sequence.token_ids += [100 + place for place in added]
            sequence.num_tokens = len(sequence.token_ids)
        drafter.forget(sequence)


def test_a_sequence_whose_states_are_not_there_is_not_guessed_for_and_keeps_no_slot() -> None:
    drafter, sequence = drafter_over(CheckingHead(), num_sequences=1), sequence_of(9)
    assert drafter.offers([sequence])[0].most == 0  # nothing was computed
    drafter.forget(sequence)
    other = sequence_of(5)
    compute(other, 0, 4)
    assert drafter.offers([other])[0].most > 0
    assert drafter.propose([(other, 2)]) == [[105, 106]]


def test_a_head_that_is_not_asked_reads_along_in_long_runs() -> None:
    head = CheckingHead()
    drafter, sequence = drafter_over(head), sequence_of(9)
    sequence.states = TokenStates(1)
    compute(sequence, 0, 8)
    reads = set()
    for place in range(9, 180):
        drafter.offers([sequence])
        reads.add(head.num_read)
        compute(sequence, place - 1, place)
        sequence.token_ids.append(100 + place)
        sequence.num_tokens += 1
    assert 2 <= len(reads) <= 4
    assert head.num_read > 100
