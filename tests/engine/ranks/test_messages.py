"""Steps as they are sent to other ranks: what comes out is what went in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.ranks.messages import BlockTables, Masks, batch_of, decoded, encoded, message_of
from zse.errors import UnsupportedModelError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kv.windows import WindowTable


def sent(batch: StepBatch, ours: BlockTables, theirs: BlockTables) -> StepBatch:
    return batch_of(decoded(memoryview(encoded(message_of(batch, ours)))), theirs, None)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=6)),
            max_size=3,
            unique_by=lambda one: one[0],
        ),
        max_size=12,
    )
)
def test_tables_that_grow_shrink_and_change_arrive_as_they_are(
    steps: list[list[tuple[int, list[int]]]],
) -> None:
    ours, theirs = BlockTables(), BlockTables()
    for step in steps:
        chunks = [SequenceChunk(slot, [1], 0, table, "decode") for slot, table in step]
        found = sent(StepBatch(chunks=chunks, sampling=[[]] * len(chunks)), ours, theirs)
        assert [one.block_table for one in found.chunks] == [table for _, table in step]


def test_a_table_is_sent_once_and_then_what_is_new_of_it() -> None:
    ours, table = BlockTables(), list(range(5000))
    chunk = SequenceChunk(0, [1], 0, table, "decode")
    batch = StepBatch(chunks=[chunk], sampling=[[]])
    first = len(encoded(message_of(batch, ours)))
    table.append(7)
    assert len(encoded(message_of(batch, ours))) < 100 < first


def test_every_field_of_chunks_and_rows_arrives() -> None:
    row = SamplingRow(
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logprobs=4,
        logit_bias={7: 1.5},
        seed=2**63 + 5,
        step=9,
        prompt_token_ids=[1, 2],
        output_token_ids=[3],
        banned_token_ids=[4],
        known_token_id=5,
        wants_hidden=True,
        is_masked=True,
    )
    windows = [None, WindowTable(first=3, blocks=[8, 9])]
    chunk = SequenceChunk(2, [5, 6], 7, [1], "verify", True, 1, 2, windows=windows)
    batch = StepBatch(chunks=[chunk], sampling=[[row]])
    found = sent(batch, BlockTables(), BlockTables())
    assert found.chunks[0][:8] == tuple(chunk)[:8]
    assert (found.chunks[0].windows[0], found.chunks[0].windows[1].blocks) == (None, [8, 9])
    assert found.chunks[0].windows[1].first == 3
    assert found.sampling[0][0] == row


def test_texts_are_sent_only_where_penalties_look_at_them() -> None:
    row = SamplingRow(temperature=0.0, prompt_token_ids=[1] * 9000)
    chunk = SequenceChunk(0, [1], 0, [0], "decode")
    assert len(encoded(message_of(StepBatch(chunks=[chunk], sampling=[[row]]), BlockTables()))) < 99


def test_masks_arrive_as_they_lie_in_memory() -> None:
    data = random.Random(1).randbytes(600)
    assert decoded(encoded(Masks(data))).data == data


def test_a_step_with_an_adapter_is_refused() -> None:
    chunk = SequenceChunk(0, [1], 0, [0], "decode", adapter=object())
    with pytest.raises(UnsupportedModelError, match="adapters"):
        message_of(StepBatch(chunks=[chunk], sampling=[[]]), BlockTables())
