"""Shards: each device reads its share and nothing else, and together they read everything."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from host_gpu import HostGpu
from hypothesis import given, settings
from hypothesis import strategies as st
from loads import start_load
from placed_bytes import (
    PAIRS,
    Divided,
    PlacedFile,
    fill,
    held_bytes,
    make_file,
    ranges,
)

from zse.errors import UsageError
from zse.format.layout import PlannedFile, PlannedTensor, plan_layout
from zse.format.schemes import Scheme
from zse.models.families import read_checkpoint
from zse.models.well_known import WELL_KNOWN
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.plan import plan_reads
from zse.stream.shards import Sharded

if TYPE_CHECKING:
    from zse.format.spec import TensorEntry

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
        shard = Sharded(file.header, file.weights, rank=rank, ranks=ranks)
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
        shard = Sharded(file.header, file.weights, rank=rank, ranks=ranks)
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
    shard = Sharded(file.header, file.weights, rank=1, ranks=2)
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
    shard = Sharded(file.header, file.weights, rank=1, ranks=2)
    address = gpu.memory(shard.length_bytes)
    start_load(gpu, InMemory(), shard, address, LoaderOptions(threads=3, chunk_bytes=4096)).wait()
    block = gpu.bytes_of(address)
    for entry in file.header.tensors:
        assert held_bytes(shard, entry, block) == share(file, entry, 1, 2)
    with pytest.raises(UsageError, match="digests are of whole groups"):
        start_load(gpu, InMemory(), shard, address, LoaderOptions(is_verified=True)).wait()


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({"heads": (8, 2, 2)}, 4, r"rows 8 \+ 2 \+ 2 of tensor layers.0.qkv.weight"),
        ({"columns": 192, "scheme": "int4"}, 2, "columns 192 of tensor .* in units of 64"),
    ],
)
def test_what_cannot_be_shared_evenly_is_refused_by_name(
    changes: dict[str, object], ranks: int, words: str
) -> None:
    file = make_file(**changes)
    with pytest.raises(UsageError, match=words):
        Sharded(file.header, file.weights, rank=0, ranks=ranks)


def test_a_tensor_of_which_nothing_is_said_and_a_device_that_is_none_are_refused() -> None:
    file = make_file()
    with pytest.raises(UsageError, match=r"no tensor embed\.weight"):
        Sharded(file.header, [Divided("other")], rank=0, ranks=1)
    with pytest.raises(UsageError, match="rank 2 of 2"):
        Sharded(file.header, file.weights, rank=2, ranks=2)


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
    weights = [weight for group in spec.groups() for weight in group.weights]
    whole = WholeFile(header).length_bytes
    shards = [Sharded(header, weights, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({shard.length_bytes for shard in shards}) == 1
    assert whole < sum(shard.length_bytes for shard in shards) < 1.001 * whole
