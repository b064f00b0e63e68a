"""Shards: each device reads its share and nothing else, and together they read everything."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from host_gpu import HostGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import start_load
from placed_bytes import (
    PAIRS,
    PlacedFile,
    even_cuts,
    fill,
    held_bytes,
    make_file,
    ranges,
)

from zse.backends.ranks import Share
from zse.errors import UsageError
from zse.format.errors import Misuse
from zse.format.layout import PlannedFile, PlannedTensor, plan_layout
from zse.format.schemes import Scheme
from zse.models.families import read_checkpoint
from zse.models.share import share_of
from zse.models.well_known import WELL_KNOWN
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.plan import plan_reads
from zse.stream.shards import Cut, Sharded

if TYPE_CHECKING:
    from zse.format.spec import TensorEntry, ZSEHeader


def bytes_of(header: ZSEHeader, name: str) -> int:
    return next(entry.length_bytes for entry in header.tensors if entry.name == name)


SCHEMES = st.sampled_from(sorted(PAIRS))


def share(file: PlacedFile, entry: TensorEntry, rank: int, ranks: int) -> list[bytes]:
    """Return one device's parts of a tensor, cut by hand."""
    weight = {weight.name: weight for weight in file.weights}[entry.name]
    found = []
    for part in entry.parts:
        rows = file.rows(part)
        if weight.shard == "rows":
            kept, first = [], 0
            for count in weight.piece_rows:
                each = count // ranks
                kept += rows[first + rank * each : first + (rank + 1) * each]
                first += count
            found.append(b"".join(kept))
        elif weight.shard == "columns" and len(part.shape) == 2:
            size = len(rows[0]) // ranks
            found.append(b"".join(row[rank * size : (rank + 1) * size] for row in rows))
        else:
            found.append(b"".join(rows))
    return found


@settings(max_examples=30, deadline=None)
@given(scheme=SCHEMES, ranks=st.sampled_from([1, 2, 4]), chunk_pages=st.integers(1, 3))
def test_a_device_holds_its_share_of_every_tensor(
    scheme: str, ranks: int, chunk_pages: int
) -> None:
    file = make_file(scheme=scheme, layers=2)
    for rank in range(ranks):
        shard = Sharded(file.header, even_cuts(file, rank, ranks))
        plan = plan_reads(shard, chunk_bytes=chunk_pages * 4096)
        block = fill(plan, file.data, shard.length_bytes)
        for entry in file.header.tensors:
            assert held_bytes(shard, entry, block) == share(file, entry, rank, ranks)
            for part in shard.held(entry).parts:
                assert part.offset_bytes % 256 == 0


@settings(max_examples=30, deadline=None)
@given(scheme=SCHEMES, ranks=st.sampled_from([1, 2, 4]))
def test_what_is_divided_is_read_once_and_the_rest_by_every_device(scheme: str, ranks: int) -> None:
    file = make_file(scheme=scheme, layers=1)
    reads: Counter[int] = Counter()
    for rank in range(ranks):
        shard = Sharded(file.header, even_cuts(file, rank, ranks))
        for start, end in ranges(plan_reads(shard).chunks):
            reads.update(range(start, end))
    expected: Counter[int] = Counter()
    for entry in file.header.tensors:
        shape = shard.held(entry).shape
        for part, held in zip(entry.parts, shard.held(entry).parts, strict=True):
            times = 1 if held.length_bytes < part.length_bytes else ranks
            expected.update(dict.fromkeys(range(part.offset_bytes, part.end_bytes), times))
        assert (shape == entry.shape) == (ranks == 1 or "norm" in entry.name)
    assert reads == expected


def test_a_share_of_joined_rows_is_a_run_of_each_and_of_columns_a_piece_of_each_row() -> None:
    file = make_file(layers=1)
    shard = Sharded(file.header, even_cuts(file, 1, 2))
    layer = file.header.groups[1]
    norm, *qkv = shard.runs(layer)
    qkv, bias, down = qkv[:6], qkv[6:9], qkv[9:]
    assert norm.num_pieces == 1
    assert [run.piece_bytes for run in qkv[:3]] == [4 * 32, 2 * 32, 2 * 32]
    assert [run.piece_bytes for run in bias] == [4 * 4, 2 * 4, 2 * 4]
    assert [(run.num_pieces, run.piece_bytes, run.stride_bytes) for run in down] == [
        (12, 64, 128),
        (12, 8, 16),
    ]


def test_the_loader_brings_a_share_to_a_device() -> None:
    class InMemory:
        name, kind, size_bytes = "memory", "page cache", 1 << 40

        def read_into(self, offset: int, view: memoryview) -> None:
            view[:] = file.data[offset : offset + len(view)]

        def check_unchanged(self) -> None: ...

    file, gpu = make_file(scheme="nf4"), HostGpu()
    shard = Sharded(file.header, even_cuts(file, 1, 2))
    address = gpu.memory(shard.length_bytes)
    start_load(gpu, InMemory(), shard, address, LoaderOptions(threads=3, chunk_bytes=4096)).wait()
    block = gpu.bytes_of(address)
    for entry in file.header.tensors:
        assert held_bytes(shard, entry, block) == share(file, entry, 1, 2)
    with pytest.raises(UsageError, match="digests are of whole groups"):
        start_load(gpu, InMemory(), shard, address, LoaderOptions(is_verified=True)).wait()


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (Cut(axis="columns", pieces=((0, 96),)), r"columns 0..96 of .* in units of 64"),
        (Cut(axis="columns", pieces=((32, 64),)), r"columns 32..96 of .* in units of 64"),
        (Cut(axis="columns", pieces=((192, 128),)), r"columns 192..320 of .*\[12, 256\]"),
        (Cut(axis="rows", pieces=((0, 4), (10, 3))), r"rows 0..4 \+ 10..13 of .*\[12, 256\]"),
    ],
)
def test_a_cut_through_a_group_or_beyond_its_tensor_is_refused(cut: Cut, words: str) -> None:
    file = make_file()
    with pytest.raises(UsageError, match=words):
        Sharded(file.header, {"layers.0.down.weight": cut})


def test_a_cut_of_a_tensor_that_the_file_has_not_is_refused() -> None:
    with breaks(Misuse.UNKNOWN_NAME, match=r"no tensor other"):
        Sharded(make_file().header, {"other": Cut(axis="rows", pieces=((0, 1),))})


def test_pieces_that_are_evenly_spaced_are_one_run() -> None:
    file = make_file(layers=1)
    pieces = tuple((3 * index, 2) for index in range(4))
    shard = Sharded(file.header, {"layers.0.down.weight": Cut(axis="rows", pieces=pieces)})
    codes, scales = shard.runs_of("layers.0.down.weight")
    assert (codes.num_pieces, codes.piece_bytes, codes.stride_bytes) == (4, 2 * 128, 3 * 128)
    assert (scales.num_pieces, scales.piece_bytes, scales.stride_bytes) == (4, 2 * 16, 3 * 16)
    entry = next(one for one in file.header.tensors if one.name == "layers.0.down.weight")
    block = fill(plan_reads(shard), file.data, shard.length_bytes)
    for part, held in zip(entry.parts, held_bytes(shard, entry, block), strict=True):
        rows = file.rows(part)
        assert held == b"".join(
            rows[row] for first, count in pieces for row in range(first, first + count)
        )


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-32b"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_spec_says_how_its_model_is_divided(name: str, ranks: int) -> None:
    spec = read_checkpoint(WELL_KNOWN[name])
    groups = []
    for group in spec.groups():
        tensors = []
        for weight in group.weights:
            scheme = {"linear": Scheme.INT4, "embed": Scheme.INT8, "head": Scheme.INT8}.get(
                weight.kind, Scheme.FP32
            )
            size = 128 if scheme is Scheme.INT4 else 0
            tensors.append(
                PlannedTensor(name=weight.name, scheme=scheme, shape=weight.shape, group_size=size)
            )
        groups.append((group.name, tensors))
    planned = PlannedFile(
        architecture="qwen2", model_config={}, provenance={}, sections=[], groups=groups
    )
    header = plan_layout(planned).header
    embedding = bytes_of(header, "embed.weight")
    whole = WholeFile(header).length_bytes
    shares = [
        share_of(spec, header.tensors, Share(rank=rank, ranks=ranks)) for rank in range(ranks)
    ]
    lengths = [Sharded(header, share.cuts).length_bytes for share in shares]
    assert max(lengths) < 1.002 * min(lengths)
    shared = sum(lengths) - (ranks - 1) * embedding
    assert whole < shared < 1.001 * whole
