"""An adapter as the kernels read it: records, then its matrices in bfloat16, in one piece.

Records name places from the start of all adapters' memory, so an image is made for its place.
"""

from __future__ import annotations

import struct
import time
from array import array
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from zse.backends.adapters import AdaptedMatrix, adapted_linears
from zse.backends.gpu.weights import widened
from zse.errors import LoRAError
from zse.format.schemes import Scheme
from zse.kernels.low_rank.variants import PIECE, PLACE_BYTES, RECORD_NUMBERS
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.backends.adapters import AdapterWeights, LowRank, PlainMatrix
    from zse.models.spec import ModelSpec

_PIECE_BYTES = 2 * PIECE
_RECORD_BYTES = 8 * RECORD_NUMBERS
_SLICE_BYTES = 1 << 16
"""Of numbers that are converted in one go, while the interpreter's lock is held."""


@record
class MatrixParts:
    """A matrix, or a stack of them, as adapters see it: parts that are adapted one by one."""

    matrix: AdaptedMatrix
    first_record: int
    shared: AdaptedMatrix | None = None
    """Of a stack: the matrix of the expert of every token, which a mixture may have as one more."""
    slots: int = 0
    """Of a stack: matrices that a row goes through, at most; 0: it is one matrix."""

    @property
    def name(self) -> str:
        return self.matrix.name

    @property
    def columns(self) -> int:
        """That it reads."""
        return self.matrix.linear.weight.shape[1]

    @property
    def part_rows(self) -> tuple[int, ...]:
        return self.matrix.part_rows

    @property
    def num_records(self) -> int:
        return (self.matrix.members + (self.shared is not None)) * len(self.part_rows)


def matrices_of(spec: ModelSpec) -> list[MatrixParts]:
    """Return the matrices that adapters add to, in the order of their records."""
    found: list[MatrixParts] = []
    first_record = 0
    for matrix, shared, slots in _in_order(spec):
        one = MatrixParts(matrix=matrix, first_record=first_record, shared=shared, slots=slots)
        found.append(one)
        first_record += one.num_records
    return found


def _in_order(spec: ModelSpec) -> Iterator[tuple[AdaptedMatrix, AdaptedMatrix | None, int]]:
    for linear in adapted_linears(spec):
        yield AdaptedMatrix(linear=linear), None, 0
    for layer in spec.layers:
        if (experts := layer.experts) is None:
            continue
        own, expert = experts.shared, experts.expert
        slots = experts.experts_per_token + (own is not None)
        for stack, other in (
            (expert.up, own and own.up),
            (expert.down, own and own.down),
        ):
            matrix = AdaptedMatrix(linear=stack, members=experts.num_experts)
            shared = AdaptedMatrix(linear=other) if other else None
            is_alike = shared is not None and shared.part_rows == matrix.part_rows
            yield matrix, shared if is_alike else None, slots
            if shared is not None:
                yield shared, None, 0


def largest_image_bytes(spec: ModelSpec, rank: int) -> int:
    """Return the bytes of an adapter of all matrices but experts', each part of the same rank.

    Of experts there are many: memory for adapters of theirs is asked for.
    """
    matrices = matrices_of(spec)
    end = sum(matrix.num_records for matrix in matrices) * _RECORD_BYTES
    for one in matrices:
        if not one.slots:
            end += sum(2 * align_up(rank, PIECE) * (one.columns + rows) for rows in one.part_rows)
    return align_up(end, PLACE_BYTES)


def parts_by_record(
    adapter: AdapterWeights, matrices: Sequence[MatrixParts]
) -> list[LowRank | None]:
    """Return what an adapter has for each record."""
    found: list[LowRank | None] = []
    for one in matrices:
        members = one.matrix.by_member(adapter.parts.get(one.name, ()))
        if one.shared is not None:
            members.append(adapter.parts.get(one.shared.name, ()))
        for own in members:
            first_row = 0
            for rows in one.part_rows:
                found.append(_of_rows(own, first_row, rows))
                first_row += rows
    return found


def _of_rows(parts: Sequence[LowRank], first_row: int, rows: int) -> LowRank | None:
    """Return what is added to some rows: a part of its own, or some rows of a longer one."""
    for part in parts:
        skipped = first_row - part.first_row
        if skipped == 0 and part.up.rows == rows:
            return part
        if 0 <= skipped < part.up.rows:
            row_bytes = len(part.up.data) // part.up.rows
            data = part.up.data[skipped * row_bytes : (skipped + rows) * row_bytes]
            return replace(part, first_row=first_row, up=replace(part.up, data=data, rows=rows))
    return None


def image_bytes(parts: Sequence[LowRank | None]) -> int:
    """Return the bytes of an adapter with these parts for its records."""
    kept = {
        id(matrix): 2 * align_up(part.rank, PIECE) * length
        for part in parts
        if part is not None
        for matrix, length in ((part.down, part.down.columns), (part.up, part.up.rows))
    }
    return align_up(len(parts) * _RECORD_BYTES + sum(kept.values()), PLACE_BYTES)


def image_at(place: int, parts: Sequence[LowRank | None], name: str) -> array[int]:
    """Return an adapter's bytes for a place, as ``array('B')``.

    Raises:
        LoRAError: A number in it is not finite, or becomes so in bfloat16.
    """
    start = place * PLACE_BYTES // _PIECE_BYTES
    image = array("B", bytes(len(parts) * _RECORD_BYTES))
    places: dict[int, int] = {}
    """Of matrices that are there, in pieces: several records may have one."""

    def placed(matrix: PlainMatrix, form: Callable[[], bytes]) -> int:
        if id(matrix) not in places:
            places[id(matrix)] = start + len(image) // _PIECE_BYTES
            image.frombytes(form())
        return places[id(matrix)]

    for number, part in enumerate(parts):
        if part is None:
            continue
        down, up, rank = part.down, part.up, align_up(part.rank, PIECE)
        downs = placed(down, partial(_padded_rows, down, rank, name))
        ups = placed(up, partial(_padded_columns, up, rank, name))
        scale = struct.unpack("<i", struct.pack("<f", part.scale))[0]
        struct.pack_into("<4q", image, number * _RECORD_BYTES, downs, ups, rank // PIECE, scale)
    image.frombytes(bytes(-len(image) % PLACE_BYTES))
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


def _padded_rows(matrix: PlainMatrix, rows: int, name: str) -> bytes:
    return _checked(matrix, name) + bytes((rows - matrix.rows) * matrix.columns * 2)


def _padded_columns(matrix: PlainMatrix, columns: int, name: str) -> bytes:
    data = _checked(matrix, name)
    if matrix.columns == columns:
        return data
    own, padding = 2 * matrix.columns, bytes(2 * (columns - matrix.columns))
    return b"".join([data[at : at + own] + padding for at in range(0, len(data), own)])
