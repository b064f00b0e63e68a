"""An adapter as the kernels read it: records, then its matrices in bfloat16, in one piece.

Records name places from the start of all adapters' memory, so an image is made for its place.
"""

from __future__ import annotations

import itertools
import struct
import time
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING

from zse.backends.adapters import adapted_linears
from zse.backends.gpu.weights import widened
from zse.errors import LoRAError
from zse.format.schemes import Scheme
from zse.kernels.low_rank.variants import PIECE, PLACE_BYTES, RECORD_NUMBERS
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.adapters import AdapterWeights, LowRank, PlainMatrix
    from zse.models.spec import ModelSpec

_PIECE_BYTES = 2 * PIECE
_RECORD_BYTES = 8 * RECORD_NUMBERS
_SLICE_BYTES = 1 << 16
"""Of numbers that are converted in one go, while the interpreter's lock is held."""


@record
class MatrixParts:
    """A matrix as adapters see it: parts that are adapted one by one."""

    name: str
    first_record: int
    columns: int
    """That it reads."""
    part_rows: tuple[int, ...]


def matrices_of(spec: ModelSpec) -> list[MatrixParts]:
    """Return the matrices that adapters add to, in the order of their records."""
    found: list[MatrixParts] = []
    first_record = 0
    for linear in adapted_linears(spec):
        weight = linear.weight
        rows = tuple(source.rows for source in weight.pieces())
        found.append(
            MatrixParts(
                name=weight.name,
                first_record=first_record,
                columns=weight.shape[1],
                part_rows=rows,
            )
        )
        first_record += len(rows)
    return found


def image_bytes(parts: Sequence[MatrixParts], ranks: Iterator[int]) -> int:
    """Return the bytes of an adapter with a rank for each record; 0 where it adds nothing."""
    end = sum(len(matrix.part_rows) for matrix in parts) * _RECORD_BYTES
    for matrix in parts:
        for rows in matrix.part_rows:
            end += align_up(next(ranks), PIECE) * 2 * (matrix.columns + rows)
    return align_up(end, PLACE_BYTES)


def largest_image_bytes(spec: ModelSpec, rank: int) -> int:
    """Return the bytes of an adapter of all matrices of a model, each part of the same rank."""
    parts = matrices_of(spec)
    return image_bytes(parts, itertools.repeat(rank))


def parts_by_record(
    adapter: AdapterWeights, matrices: Sequence[MatrixParts]
) -> list[LowRank | None]:
    """Return what an adapter has for each record."""
    found: list[LowRank | None] = []
    for matrix in matrices:
        own = {part.first_row: part for part in adapter.parts.get(matrix.name, ())}
        first_row = 0
        for rows in matrix.part_rows:
            found.append(own.get(first_row))
            first_row += rows
    return found


def image_at(place: int, parts: Sequence[LowRank | None], name: str) -> array[int]:
    """Return an adapter's bytes for a place, as ``array('B')``.

    Raises:
        LoRAError: A number in it is not finite, or becomes so in bfloat16.
    """
    start = place * PLACE_BYTES // _PIECE_BYTES
    matrices: list[bytes] = []
    records = bytearray()
    end = len(parts) * _RECORD_BYTES
    for part in parts:
        if part is None:
            records += bytes(_RECORD_BYTES)
            continue
        rank = align_up(part.rank, PIECE)
        down = _padded_rows(_checked(part.down, name), part.down, rank)
        up = _padded_columns(_checked(part.up, name), part.up, rank)
        ups = end + len(down)
        scale = struct.unpack("<i", struct.pack("<f", part.scale))[0]
        places = (start + offset // _PIECE_BYTES for offset in (end, ups))
        records += struct.pack("<4q", *places, rank // PIECE, scale)
        matrices += (down, up)
        end = ups + len(up)
    image = array("B", records)
    for matrix in matrices:
        image.frombytes(matrix)
    image.frombytes(bytes(-end % PLACE_BYTES))
    return image


def _checked(matrix: PlainMatrix, name: str) -> bytes:
    """Return numbers as bfloat16, all finite."""
    raw = matrix.data
    if matrix.scheme is Scheme.FP16:
        raw = widened(raw, Scheme.FP16)
    narrow = raw if matrix.scheme is Scheme.BF16 else b"".join(map(_narrowed, _slices(raw)))
    if not all(map(_is_finite, _slices(narrow))):
        raise LoRAError(f"the adapter '{name}' holds numbers that are not finite")
    return narrow


def _slices(data: bytes) -> Iterator[bytes]:
    for first in range(0, len(data), _SLICE_BYTES):
        yield data[first : first + _SLICE_BYTES]
        time.sleep(0)  # whoever waits for the interpreter goes first: answers are being written


def _narrowed(data: bytes) -> bytes:
    """Round float32 to bfloat16: as one long number, each half of the dropped bits is added.

    What is not finite stays so: added to, some of it would become zero.
    """
    upper = array("H", data)[1::2].tobytes()
    if not _is_finite(upper):
        return upper
    total = int.from_bytes(data, "little") + _repeated(b"\x00\x80\x00\x00", len(data))
    words = array("H", total.to_bytes(len(data) + 2, "little"))
    return words[1:-1:2].tobytes()


def _is_finite(data: bytes) -> bool:
    """Whether no bfloat16 has an exponent of ones alone, to which one more is a carry.

    Trained numbers are far below those whose upper byte has seven ones of it: these are looked for.
    """
    upper = data[1::2]
    if b"\x7f" not in upper and b"\xff" not in upper:
        return True
    exponents = int.from_bytes(data, "little") & _repeated(b"\x80\x7f", len(data))
    carries = exponents + _repeated(b"\x80\x00", len(data))
    return not carries & _repeated(b"\x00\x80", len(data))


@lru_cache(maxsize=8)
def _repeated(pattern: bytes, length: int) -> int:
    return int.from_bytes(pattern * (length // len(pattern)), "little")


def _padded_rows(data: bytes, matrix: PlainMatrix, rows: int) -> bytes:
    return data + bytes((rows - matrix.rows) * matrix.columns * 2)


def _padded_columns(data: bytes, matrix: PlainMatrix, columns: int) -> bytes:
    if matrix.columns == columns:
        return data
    own, padding = 2 * matrix.columns, bytes(2 * (columns - matrix.columns))
    return b"".join([data[at : at + own] + padding for at in range(0, len(data), own)])
