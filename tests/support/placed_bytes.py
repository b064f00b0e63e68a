"""A small file of tensors in memory, and a block that a read plan fills: what lies where."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zse.format.layout import PlannedFile, PlannedTensor, plan_layout
from zse.format.schemes import Scheme
from zse.stream.shards import Cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.format.spec import TensorEntry, TensorPart, ZSEHeader
    from zse.stream.placement import Placement
    from zse.stream.plan import ReadPlan

POISON = 0xEE
PAIRS = {"int4": 64, "nf4": 32, "int8": 0, "bf16": 0}


@dataclass(frozen=True)
class Divided:
    """How a tensor is divided, as a spec's weight says it."""

    name: str
    shard: str = "none"
    piece_rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlacedFile:
    """A header, the whole file's bytes, and how its tensors are divided."""

    header: ZSEHeader
    data: bytes
    weights: tuple[Divided, ...]

    def part(self, part: TensorPart) -> bytes:
        return self.data[part.offset_bytes : part.end_bytes]

    def rows(self, part: TensorPart) -> list[bytes]:
        raw, count = self.part(part), part.shape[0]
        size = len(raw) // count
        return [raw[row * size : (row + 1) * size] for row in range(count)]


def make_file(
    *,
    layers: int = 3,
    scheme: str = "int4",
    heads: tuple[int, int, int] = (8, 4, 4),
    columns: int = 256,
    seed: int = 0,
) -> PlacedFile:
    """Return a file with every way of being divided: an embedding, joined rows, columns, norms."""
    group = PAIRS[scheme]
    groups, weights = [], [Divided("embed.weight", "rows", (24,))]
    groups.append(
        ("embed", [PlannedTensor(name="embed.weight", scheme=Scheme.INT8, shape=(24, 64))])
    )
    for layer in range(layers):
        qkv, down = (sum(heads), 64), (12, columns)
        name = f"layers.{layer}"
        tensors = [
            PlannedTensor(name=f"{name}.norm.weight", scheme=Scheme.FP32, shape=(64,)),
            PlannedTensor(
                name=f"{name}.qkv.weight", scheme=Scheme(scheme), shape=qkv, group_size=group
            ),
            PlannedTensor(name=f"{name}.qkv.bias", scheme=Scheme.FP32, shape=qkv[:1]),
            PlannedTensor(
                name=f"{name}.down.weight", scheme=Scheme(scheme), shape=down, group_size=group
            ),
        ]
        groups.append((name, tensors))
        weights += [
            Divided(f"{name}.norm.weight"),
            Divided(f"{name}.qkv.weight", "rows", heads),
            Divided(f"{name}.qkv.bias", "rows", heads),
            Divided(f"{name}.down.weight", "columns", (12,)),
        ]
    groups.append(("final", [PlannedTensor(name="norm.weight", scheme=Scheme.FP32, shape=(64,))]))
    weights.append(Divided("norm.weight"))
    planned = PlannedFile(
        architecture="llama", model_config={}, provenance={}, sections=[], groups=groups
    )
    layout = plan_layout(planned)
    data = random.Random(seed).randbytes(layout.file_size_bytes)
    return PlacedFile(header=layout.header, data=data, weights=tuple(weights))


def even_cuts(file: PlacedFile, rank: int, ranks: int) -> dict[str, Cut]:
    """Return the cuts of a device that has an even share of all that is divided."""
    cuts = {}
    for entry in file.header.tensors:
        weight = next(one for one in file.weights if one.name == entry.name)
        pieces = weight.piece_rows if weight.shard == "rows" else entry.shape[-1:]
        starts = [sum(pieces[:index]) for index in range(len(pieces))]
        if weight.shard != "none":
            cuts[entry.name] = Cut(
                axis=weight.shard,
                pieces=tuple(
                    (start + rank * count // ranks, count // ranks)
                    for start, count in zip(starts, pieces, strict=True)
                ),
            )
    return cuts


def fill(
    plan: ReadPlan, data: bytes, length_bytes: int, block: bytearray | None = None
) -> bytearray:
    """Do what a plan says; return the block, whose untouched bytes are ``POISON``."""
    block = block if block is not None else bytearray([POISON]) * length_bytes
    for chunk in plan.chunks:
        raw = b"".join(data[start:end] for start, end in ranges(plan_chunks=[chunk]))
        start = chunk.destination_offset_bytes
        assert len(raw) == chunk.length_bytes
        assert 0 <= start <= start + len(raw) <= length_bytes
        block[start : start + len(raw)] = raw
    return block


def ranges(plan_chunks: Sequence[object]) -> list[tuple[int, int]]:
    """Return where each read of some chunks begins and ends in the file."""
    found = []
    for chunk in plan_chunks:
        size = chunk.length_bytes // chunk.num_pieces
        for index in range(chunk.num_pieces):
            start = chunk.offset_bytes + index * chunk.stride_bytes
            found.append((start, start + size))
    return found


def held_bytes(placement: Placement, entry: TensorEntry, block: bytes) -> list[bytes]:
    """Return each part of a tensor as it lies in a block."""
    shift = placement.origin_bytes
    parts = placement.held(entry).parts
    return [bytes(block[part.offset_bytes - shift : part.end_bytes - shift]) for part in parts]
