"""Rows of the residual stream in the form of a codec: from memory to bytes, and from bytes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.cpu.memory import address_of
from zse.errors import MeshError

if TYPE_CHECKING:
    from zse.kernels.native.library import Library
    from zse.mesh.codecs import Codec


def write_rows(library: Library, codec: Codec, rows: memoryview[float], width: int) -> bytearray:
    """Return float32 [count, width] as a codec has it; the same numbers give the same bytes."""
    count = len(rows) // width
    written = bytearray(count * codec.row_bytes(width))
    if written:
        output = address_of(memoryview(written))
        library.write_rows(codec, address_of(rows.cast("B")), count, width, output)
    return written


def read_rows(
    library: Library, codec: Codec, data: memoryview, rows: memoryview[float], width: int
) -> None:
    """Read rows into float32 [count, width].

    Raises:
        MeshError: There are more or fewer bytes than the rows have.
    """
    count = len(rows) // width
    expected = count * codec.row_bytes(width)
    if len(data) != expected:
        raise MeshError(
            f"{count} rows of {width} numbers came in {len(data)} bytes; "
            f"as {codec.word} they have {expected}"
        )
    if expected:
        library.read_rows(codec, address_of(data), count, width, address_of(rows.cast("B")))
