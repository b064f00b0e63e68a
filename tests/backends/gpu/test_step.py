"""A batch is put in the order of its rows, padded, and written where the kernels read it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from zse.backends.gpu.graphs import room_for, tile_room
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.step import StepLimits, plan_step, shape_of
from zse.backends.gpu.step_inputs import UNSEEN_BLOCKS, tiles_of, write_inputs
from zse.backends.gpu.transfers import floats_of_bfloat16
from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.errors import EngineError
from zse.kernels.attention.variants import PREFILL_FORMS
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kv.windows import WindowGroup, WindowTable

LIMITS = StepLimits(
    vocab_size=100, num_blocks=16, max_slots=8, tile_queries=64, table_stride=6, max_sampled=9
)
GREEDY = SamplingRow(temperature=0.0)
DRAWN = SamplingRow(temperature=1.0, seed=1)


def chunk(tokens: list[int], start: int, slot: int, blocks: tuple[int, ...] = (3, 1, 4, 9)):
    return SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)))


class Written:
    """The arrays of a step as the device would see them."""

    def __init__(self, batch: StepBatch, bucket: int = 0) -> None:
        self.plan = plan_step(batch, LIMITS)
        self.shape = shape_of(self.plan, LIMITS, bucket=bucket)
        self.view = memoryview(bytearray(self.shape.length_bytes))
        self.at = self.shape.arrays_at(0)
        write_inputs(self.view, self.plan, self.shape, LIMITS)

    def numbers(self, start: int, count: int, kind: str = "i") -> list[float]:
        return self.view[start : start + 4 * count].cast(kind).tolist()


def test_single_tokens_come_first_and_longer_chunks_follow():
    batch = StepBatch(
        chunks=[chunk([5, 6, 7], 10, 0), chunk([8], 40, 1)], sampling=[[GREEDY], [GREEDY]]
    )
    written = Written(batch)
    assert (written.plan.single, written.plan.prefill) == ([1], [0])
    assert written.numbers(written.at.tokens, 4) == [8, 5, 6, 7]
    assert written.numbers(written.at.positions, 1) == [40]
    assert written.numbers(written.at.prefill_positions, 3) == [10, 11, 12]
    assert written.numbers(written.at.prefill_tables, 3) == [1, 1, 1]
    assert written.numbers(written.at.wanted, 2) == [0, 3]
    assert written.numbers(written.at.sampling.slots, 2) == [1, 0]
    assert written.plan.kind == "prefill"


def test_a_long_chunk_is_cut_into_tiles():
    written = Written(StepBatch(chunks=[chunk([1] * 100, 20, 2)], sampling=[()]))
    tiles = sorted(
        zip(
            written.numbers(written.at.tile_first_rows, 2),
            written.numbers(written.at.tile_num_rows, 2),
            written.numbers(written.at.tile_first_positions, 2),
            strict=True,
        )
    )
    assert tiles == [(0, 64, 20), (64, 36, 84)]


def test_padding_rows_use_a_block_and_a_slot_of_their_own():
    batch = StepBatch(
        chunks=[chunk([PENDING_TOKEN], 7, slot) for slot in range(3)], sampling=[[GREEDY]] * 3
    )
    written = Written(batch, bucket=4)
    assert written.plan.kind == "decode"
    assert written.numbers(written.at.tokens, 4) == [PENDING_TOKEN] * 3 + [0]
    assert written.numbers(written.at.slots, 4) == [0, 1, 2, LIMITS.max_slots]
    assert written.numbers(written.at.sampling.slots, 4) == [0, 1, 2, LIMITS.max_slots]
    tables = written.numbers(written.at.tables, 4 * LIMITS.table_stride)
    assert tables[:4] == [3, 1, 4, 9]
    assert tables[3 * LIMITS.table_stride] == LIMITS.num_blocks


def test_each_group_of_windows_has_a_table_as_far_as_kernels_look():
    windows = [WindowGroup(window=40, num_blocks=9), WindowGroup(window=70, num_blocks=8)]
    limits = replace(LIMITS, windows=windows)
    tables = [WindowTable(first=2, blocks=[7, 4]), WindowTable(first=1, blocks=[2, 5, 0])]
    batch = StepBatch(
        chunks=[
            chunk([5], 110, 0)._replace(windows=tables),
            chunk([5, 6], 4, 1, (3,))._replace(windows=[WindowTable(blocks=[b]) for b in (1, 6)]),
        ],
        sampling=[[GREEDY], [GREEDY]],
    )
    plan = plan_step(batch, limits)
    shape = shape_of(plan, limits, bucket=2)
    shape = replace(shape, sequences=3)
    view = memoryview(bytearray(b"\xee" * shape.length_bytes))
    write_inputs(view, plan, shape, limits)
    start = shape.arrays_at(0).window_tables
    found = view[start : start + 4 * shape.window_blocks].cast("i").tolist()
    rows = [found[at : at + 6] for at in range(0, len(found), 6)]
    assert rows[0][1:4] == [9, 7, 4]
    assert rows[1][0] == 9  # of a row that fills up the step
    assert rows[2][0] == 1
    assert rows[3][0:4] == [8, 2, 5, 0]
    assert rows[4][0] == 8
    assert rows[5][0] == 6


def test_no_tile_of_keys_begins_before_the_block_that_stands_for_what_is_not_seen():
    assert max(form.tokens for form in PREFILL_FORMS) <= (1 + UNSEEN_BLOCKS) * BLOCK_SIZE


def test_a_chunk_without_a_block_that_its_window_sees_is_refused():
    limits = replace(LIMITS, windows=[WindowGroup(window=40, num_blocks=9)])

    def check(own: WindowTable) -> None:
        one = chunk([5], 110, 0)._replace(windows=[own])
        plan_step(StepBatch(chunks=[one], sampling=[[GREEDY]]), limits)

    check(WindowTable(first=2, blocks=[7, 4]))
    with pytest.raises(EngineError, match="has blocks 3 to 3 of a window of 40 tokens; it needs 2"):
        check(WindowTable(first=3, blocks=[4]))
    with pytest.raises(EngineError, match=r"has blocks 2 to 2 .* it needs 2 to 3"):
        check(WindowTable(first=2, blocks=[7]))
    with pytest.raises(EngineError, match="a block of a window of 40 tokens is outside 0 to 8"):
        check(WindowTable(first=2, blocks=[7, 9]))


def test_every_token_of_a_chunk_of_drafts_is_sampled_and_none_of_them_goes_on_by_itself():
    drafts = chunk([5, 6, 7], 10, 0)._replace(kind="verify")
    batch = StepBatch(chunks=[drafts, chunk([8], 40, 1)], sampling=[[GREEDY] * 3, [GREEDY]])
    written = Written(batch)
    assert written.plan.kind == "verify"
    assert written.plan.sampled == [0, 0, 0, 1]
    assert written.numbers(written.at.wanted, 4) == [0, 1, 2, 3]
    assert written.numbers(written.at.sampling.slots, 4) == [*[LIMITS.max_slots] * 3, 1]


def test_drafts_are_rows_of_their_own_with_the_table_of_their_sequence_each():
    drafts = chunk([5, 6, 7], 10, 0, (3, 1))._replace(kind="verify")
    batch = StepBatch(chunks=[chunk([8], 40, 1), drafts], sampling=[[GREEDY], [GREEDY] * 3])
    written = Written(batch, bucket=8)
    assert written.shape.rows_follow
    assert (written.shape.rows, written.shape.prefill_rows) == (8, 0)
    assert written.numbers(written.at.tokens, 8) == [8, 5, 6, 7, 0, 0, 0, 0]
    assert written.numbers(written.at.positions, 8) == [40, 10, 11, 12, 0, 0, 0, 0]
    tables = written.numbers(written.at.tables, 8 * LIMITS.table_stride)
    rows = [tables[at : at + 2] for at in range(0, len(tables), LIMITS.table_stride)]
    assert rows[:4] == [[3, 1]] * 4
    assert [row[0] for row in rows[4:]] == [LIMITS.num_blocks] * 4


def test_where_every_row_is_single_a_prompt_is_no_longer_cut_into_tiles():
    plan = plan_step(
        StepBatch(chunks=[chunk([5, 6, 7], 10, 0), chunk([8], 40, 1)], sampling=[(), [DRAWN]]),
        replace(LIMITS, all_single=True),
    )
    shape = shape_of(plan, LIMITS)
    assert (shape.decode_rows, shape.prefill_rows, shape.tiles, shape.wanted) == (4, 0, 0, 1)
    assert plan.kind == "prefill"
    assert plan.sampling_kind.truncated  # one way to draw, whoever else draws in the step


def test_known_tokens_are_chosen_to_be_told_of_and_only_the_last_row_goes_on():
    told = [replace(GREEDY, known_token_id=token, logprobs=0) for token in (6, 7)]
    batch = StepBatch(
        chunks=[chunk([5, 6, 7], 10, 0), chunk([8], 40, 1)], sampling=[[*told, GREEDY], [GREEDY]]
    )
    written = Written(batch)
    assert written.plan.kind == "prefill"
    assert written.plan.sampling_kind.adjusted
    assert written.numbers(written.at.wanted, 4) == [0, 1, 2, 3]
    assert written.numbers(written.at.sampling.slots, 4) == [1, 8, 8, 0]
    assert written.numbers(written.at.sampling.entry_row, 2) == [1, 2]
    assert written.numbers(written.at.sampling.entry_token, 2) == [6, 7]
    additions = written.numbers(written.at.sampling.entry_add, 2, "f")
    assert min(additions) >= 1e9


def test_a_chunk_has_no_more_known_successors_than_tokens():
    told = replace(GREEDY, known_token_id=6)
    with pytest.raises(EngineError, match="a prefill chunk has 2 tokens and 3 sampling rows"):
        plan_step(StepBatch(chunks=[chunk([5, 6], 0, 0)], sampling=[[told] * 3]), LIMITS)


def test_a_state_of_16_bits_is_read_exactly():
    values = torch.tensor([1.5, -2.25, 3e38, 0.0, -1e-38], dtype=torch.bfloat16)
    data = bytes(values.view(torch.uint8).tolist())
    assert list(floats_of_bfloat16(data)) == values.float().tolist()


def test_logits_are_those_of_every_token_of_the_chunks_that_want_them():
    wanting = chunk([5, 6, 7], 10, 0)._replace(wants_logits=True)
    written = Written(StepBatch(chunks=[wanting, chunk([8], 40, 1)], sampling=[(), ()]))
    assert written.shape.wanted == 3
    assert written.numbers(written.at.wanted, 3) == [1, 2, 3]


def test_no_more_tokens_are_sampled_than_results_have_room_for():
    drafts = chunk([1] * 10, 0, 0)._replace(kind="verify")
    with pytest.raises(EngineError, match="10 tokens are asked for; a step samples 9"):
        plan_step(StepBatch(chunks=[drafts], sampling=[[GREEDY] * 10]), LIMITS)


@pytest.mark.parametrize(
    ("kind", "tokens", "rows", "message"),
    [
        ("decode", [1, 2], 1, "a decode chunk has 2 tokens and 1 sampling rows"),
        ("prefill", [1, 2], 2, "a prefill chunk has 2 tokens and 2 sampling rows"),
        ("verify", [1, 2], 3, "a verify chunk has 2 tokens and 3 sampling rows"),
    ],
)
def test_a_kind_of_chunk_and_what_is_asked_of_it_must_agree(kind, tokens, rows, message):
    wrong = chunk(tokens, 0, 0)._replace(kind=kind)
    with pytest.raises(EngineError, match=message):
        plan_step(StepBatch(chunks=[wrong], sampling=[[GREEDY] * rows]), LIMITS)


def test_unused_adjustments_name_no_token():
    row = SamplingRow(temperature=0.0, logit_bias={7: 2.5})
    plan = plan_step(StepBatch(chunks=[chunk([1], 0, 0)], sampling=[[row]]), LIMITS)
    shape = shape_of(plan, LIMITS, bucket=1, entry_room=4)
    view = memoryview(bytearray(shape.length_bytes))
    write_inputs(view, plan, shape, LIMITS)
    start = shape.arrays_at(0).sampling.entry_token
    assert view[start : start + 16].cast("i").tolist() == [7, -1, -1, -1]


def test_whole_texts_say_where_they_end_and_which_tokens_are_of_a_second_one():
    tokens = list(range(20))
    pair = SequenceChunk(0, tokens, 0, (0,), "prefill", second_from=3)
    alone = SequenceChunk(0, tokens[:2], 0, (1,), "prefill")
    plan = plan_step(StepBatch(chunks=[pair, alone], sampling=[(), ()]), LIMITS)
    shape = shape_of(plan, LIMITS)
    view = memoryview(bytearray(shape.length_bytes))
    write_inputs(view, plan, shape, LIMITS)
    arrays = shape.arrays_at(0)
    types = view[arrays.types :].cast("i")[:22].tolist()
    assert types == [0] * 3 + [1] * 17 + [0] * 2
    tiles = tiles_of(plan, shape, LIMITS.tile_queries)
    ends = dict(zip(tiles.table_rows, tiles.ends, strict=True))
    assert ends == {0: 20, 1: 2}
    assert view[arrays.tile_ends :].cast("i")[: shape.tiles].tolist() == tiles.ends
    unpaired = plan_step(StepBatch(chunks=[alone], sampling=[()]), LIMITS)
    assert shape_of(unpaired, LIMITS).typed_rows == 0


def test_rows_with_adapters_lie_in_tiles_of_one_each():
    one, two = SimpleNamespace(place=7), SimpleNamespace(place=9)
    chunks = [
        SequenceChunk(0, [5] * 70, 0, [0, 1, 2], "prefill", adapter=one),
        SequenceChunk(1, [5], 8, [3], "decode", adapter=two),
        SequenceChunk(2, [5] * 3, 0, [4], "prefill"),
        SequenceChunk(3, [5], 8, [5], "decode", adapter=one),
    ]
    plan = plan_step(StepBatch(chunks=chunks, sampling=[()] * 4), LIMITS)
    shape = shape_of(plan, LIMITS)
    assert (plan.adapter_tiles, shape.adapter_tiles, shape.adapter_tile_rows) == (3, 3, 64)
    view = memoryview(bytearray(shape.length_bytes))
    write_inputs(view, plan, shape, LIMITS)
    arrays = shape.arrays_at(0)
    assert view[arrays.adapter_places :].cast("i")[:3].tolist() == [9, 7, 7]
    rows = view[arrays.adapter_rows :].cast("i")[: 3 * 64].tolist()
    assert rows == [0, *[-1] * 63, *range(1, 72), *[-1] * 57]


def test_a_captured_step_has_room_for_more_tiles_that_name_no_adapter():
    chunk = SequenceChunk(0, [5], 8, [0], "decode", adapter=SimpleNamespace(place=0))
    plan = plan_step(StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]]), LIMITS)
    shape = shape_of(plan, LIMITS, bucket=4, adapter_room=4)
    view = memoryview(bytearray(b"\x11" * shape.length_bytes))
    write_inputs(view, plan, shape, LIMITS)
    arrays = shape.arrays_at(0)
    assert view[arrays.adapter_places :].cast("i")[:4].tolist() == [0, -1, -1, -1]
    assert view[arrays.adapter_rows :].cast("i")[:16].tolist() == [0, *[-1] * 15]


def test_a_step_without_adapters_has_no_tiles():
    chunk = SequenceChunk(0, [5], 8, [0], "decode")
    plan = plan_step(StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]]), LIMITS)
    assert (plan.adapter_tiles, shape_of(plan, LIMITS).adapter_tiles) == (0, 0)


def test_sequences_of_long_prompts_are_listed_one_after_the_other_for_their_lines(monkeypatch):
    monkeypatch.setattr("zse.backends.gpu.step.LINES_ROWS", 40)
    chunks = [
        SequenceChunk(0, [5] * 3, 33, [7, 2], "prefill"),
        SequenceChunk(1, [6] * 40, 0, [4, 1], "prefill"),
        SequenceChunk(2, [8], 3, [0], "decode"),
    ]
    plan = plan_step(StepBatch(chunks=chunks, sampling=[[], [], []]), LIMITS)
    assert shape_of(plan, LIMITS).context_blocks == 0
    limits = replace(LIMITS, most_context_blocks=8, context_queries=32)
    shape = shape_of(plan, limits)
    assert shape.context_blocks == 8
    assert shape_of(plan, replace(limits, most_context_blocks=7)).context_blocks == 0
    view = memoryview(bytearray(shape.length_bytes))
    write_inputs(view, plan, shape, limits)
    numbers, at = view.cast("i"), shape.arrays_at(0)
    blocks = numbers[at.context_blocks // 4 : at.context_blocks // 4 + 8].tolist()
    assert blocks == [7 * 64 + 32, 2 * 64 + 4, 0, 0, 4 * 64 + 32, 1 * 64 + 8, 0, 0]
    arrays = (
        at.context_first_rows, at.context_num_rows, at.context_first_positions, at.context_lines,
    )  # fmt: skip
    tiles = [numbers[each // 4 : each // 4 + shape.context_tiles].tolist() for each in arrays]
    assert list(zip(*tiles, strict=True)) == [(3, 32, 0, 128), (35, 8, 32, 128), (0, 3, 33, 0)]


def test_arrays_do_not_overlap_and_are_aligned():
    shape = InputShape(
        decode_rows=3,
        state_rows=3,
        prefill_rows=70,
        tiles=2,
        context_blocks=8,
        context_tiles=1,
        typed_rows=70,
        runs=2,
        sequences=5,
        table_stride=6,
        windows=2,
        wanted=4,
        entries=9,
        adapter_tiles=2,
    )
    *own, sampling = vars(shape.arrays_at(0)).values()
    offsets = [*own, *vars(sampling).values()]
    assert offsets == sorted(set(offsets))
    assert all(offset % 256 == 0 for offset in offsets)
    assert shape.length_bytes >= offsets[-1] + 4 * 4


def test_addresses_are_the_offsets_from_the_start_of_the_block():
    shape = InputShape(decode_rows=3, sequences=3, table_stride=2, wanted=3, entries=4)
    moved, offsets = shape.arrays_at(4096), shape.arrays_at(0)
    assert moved.tables == 4096 + offsets.tables
    assert moved.sampling.min_p == 4096 + offsets.sampling.min_p


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (chunk([], 0, 0), "at least one token"),
        (chunk([100], 0, 0), "token id is outside"),
        (chunk([PENDING_TOKEN, 1], 0, 0), "token id is outside"),
        (chunk([1], 200, 0), "blocks"),
        (chunk([1], 0, 8), "slot 8 is outside"),
        (chunk([1], 0, 0, (16,)), "block is outside"),
        (chunk([1], 0, 0, tuple(range(7))), "at most 6 fit"),
    ],
)
def test_a_chunk_that_breaks_a_rule_is_refused(bad, message):
    with pytest.raises(EngineError, match=message):
        plan_step(StepBatch(chunks=[bad], sampling=[()]), LIMITS)


@pytest.mark.parametrize(
    ("entries", "room"),
    [(0, 0), (1, 4096), (4096, 4096), (4097, 16384), (262_144, 262_144), (262_145, 0)],
)
def test_adjustments_take_the_smallest_room_of_a_captured_step(entries: int, room: int) -> None:
    assert room_for(entries) == room


@pytest.mark.parametrize(
    ("tiles", "rows", "room"),
    [(0, 8, 0), (1, 8, 1), (2, 8, 4), (3, 2, 2), (5, 8, 8), (17, 256, 64), (256, 256, 256)],
)
def test_tiles_of_adapters_take_the_smallest_room_of_a_captured_step(
    tiles: int, rows: int, room: int
) -> None:
    assert tile_room(tiles, rows) == room
