"""What rank 0 of a stage tells the others, through the ring of ``zse.engine.ranks``.

Rows and blocks lie in memory that all of them map (``stage_memory``): messages only say which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from zse.engine.ranks.messages import End

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Compute(msgspec.Struct, array_like=True, tag="compute"):
    """Compute a step; its rows lie in the shared memory, unless tokens come."""

    batch: bytes
    """As ``zse.mesh.batches`` writes it."""
    num_rows: int
    """0: tokens come."""


class ReadBlocks(msgspec.Struct, array_like=True, tag="read"):
    """Lay these blocks into the shared memory."""

    blocks: list[int]


class WriteBlocks(msgspec.Struct, array_like=True, tag="write"):
    """Take these blocks from the shared memory."""

    blocks: list[int]


RankMessage: TypeAlias = "Compute | ReadBlocks | WriteBlocks | End"
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(
    Compute | ReadBlocks | WriteBlocks | End
)


def written(message: RankMessage) -> bytes:
    return _ENCODER.encode(message)


def read(data: Buffer) -> RankMessage:
    return _DECODER.decode(data)
