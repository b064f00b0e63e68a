"""Read plans: every byte of the region once, in order, in chunks that stay in their group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import UsageError
from zse.format.errors import Misuse
from zse.format.layout import PlannedFile, PlannedTensor, plan_layout
from zse.format.schemes import Scheme
from zse.stream.options import LEAST_CHUNK_BYTES, LOCAL_OPTIONS, spread
from zse.stream.placement import WholeFile
from zse.stream.plan import chunks_of, plan_reads

if TYPE_CHECKING:
    from zse.format.spec import ZSEHeader


def header_of(group_pages: list[int]) -> ZSEHeader:
    groups = [
        (f"g{i}", [PlannedTensor(name=f"t{i}", scheme=Scheme.FP32, shape=(pages * 1024,))])
        for i, pages in enumerate(group_pages)
    ]
    planned = PlannedFile(
        architecture="llama", model_config={}, provenance={}, sections=[], groups=groups
    )
    return plan_layout(planned).header


@given(pages=st.lists(st.integers(1, 40), min_size=1, max_size=6), chunk_pages=st.integers(1, 17))
def test_chunks_cover_the_region_once_and_in_order(pages: list[int], chunk_pages: int) -> None:
    header = header_of(pages)
    whole = WholeFile(header)
    plan = plan_reads(whole, chunk_bytes=chunk_pages * 4096)
    offset, length = whole.origin_bytes, whole.length_bytes
    position = offset
    for chunk in plan.chunks:
        assert chunk.offset_bytes == position
        assert chunk.destination_offset_bytes == position - offset
        assert 0 < chunk.length_bytes <= chunk_pages * 4096
        assert chunk.length_bytes % 4096 == 0
        group = header.groups[chunk.group]
        assert group.offset_bytes <= chunk.offset_bytes
        assert chunk.offset_bytes + chunk.length_bytes <= group.end_bytes
        position += chunk.length_bytes
    assert position == offset + length == plan.end_bytes
    assert plan.total_bytes == length
    assert plan.largest_chunk_bytes == max(chunk.length_bytes for chunk in plan.chunks)
    assert tuple(chunks_of(whole, chunk_pages * 4096)) == plan.chunks


def test_a_group_is_cut_into_chunks_of_about_one_size() -> None:
    plan = plan_reads(WholeFile(header_of([17])), chunk_bytes=16 * 4096)
    assert [chunk.length_bytes // 4096 for chunk in plan.chunks] == [9, 8]


def test_some_groups_go_to_the_places_they_have_among_all() -> None:
    header = header_of([3, 5, 2])
    plan = plan_reads(WholeFile(header), groups=["g2", "g0"])
    assert [group.name for group in plan.groups] == ["g2", "g0"]
    assert [chunk.destination_offset_bytes // 4096 for chunk in plan.chunks] == [8, 0]
    assert plan.end_bytes == header.groups[2].end_bytes


def test_a_file_without_tensors_needs_no_reads() -> None:
    plan = plan_reads(WholeFile(header_of([])))
    assert WholeFile(header_of([])).length_bytes == 0
    assert (plan.chunks, plan.total_bytes, plan.largest_chunk_bytes) == ((), 0, 0)


def test_an_unknown_group_is_an_error() -> None:
    with breaks(Misuse.UNKNOWN_NAME, match="no group g9"):
        plan_reads(WholeFile(header_of([1])), groups=["g0", "g9"])


@pytest.mark.parametrize("chunk_bytes", [0, -4096, 1000])
def test_a_chunk_size_that_is_no_multiple_of_a_page_is_an_error(chunk_bytes: int) -> None:
    with pytest.raises(UsageError, match="multiple of 4096"):
        plan_reads(WholeFile(header_of([1])), chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("mebibytes", [0, 1, 40, 260, 5000])
def test_every_thread_of_a_small_load_has_several_chunks(mebibytes: int) -> None:
    options = spread(LOCAL_OPTIONS, mebibytes << 20)
    assert options.chunk_bytes % 4096 == 0
    assert LEAST_CHUNK_BYTES <= options.chunk_bytes <= LOCAL_OPTIONS.chunk_bytes
    if options.chunk_bytes > LEAST_CHUNK_BYTES:
        assert (mebibytes << 20) / options.chunk_bytes >= 5 * options.threads
    assert replace(options, chunk_bytes=LOCAL_OPTIONS.chunk_bytes) == LOCAL_OPTIONS
