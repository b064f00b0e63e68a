"""Which form a stored tensor takes in torch, and what the form takes of the process's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from zse.format.layout import PlannedTensor
    from zse.format.spec import TensorEntry

UPCAST_LIMIT_BYTES = 256 * 1024 * 1024
"""A model whose file is below this keeps its 16-bit matrices in float32, which is faster."""
INT4_TILE_ROWS = 256
"""Rows of an INT4 matrix that are packed together; the last tile is filled up."""
INT4_HEADER_BYTES = 4
"""Scale and bias that each row of a packed table ends with."""

Form: TypeAlias = Literal["vector", "dense", "int8", "int4", "mapped"]
"""What a stored tensor becomes: float32 copies; the packed forms of INT8 and INT4 (for INT3 and
INT2, too); or nothing:
tiles of the file's mapping are made float32 as they are needed."""


Stored: TypeAlias = "TensorEntry | PlannedTensor"
"""A tensor as a file has it, or will have it."""


def form_of(tensor: Stored, *, upcasts: bool, packs_int8: bool) -> Form:
    """Return what is made of a stored tensor.

    It upcasts where the file is below ``UPCAST_LIMIT_BYTES``, and packs INT8 where the processor
    multiplies it exactly.
    """
    if len(tensor.shape) == 1:
        return "vector"
    if tensor.scheme.is_plain:
        return "dense" if upcasts else "mapped"
    if tensor.scheme is Scheme.INT8 and packs_int8:
        return "int8"
    return "int4" if tensor.scheme in (Scheme.INT4, Scheme.INT3, Scheme.INT2) else "mapped"


def kept_bytes(tensor: Stored, form: Form) -> int:
    """Return the bytes of the process's own memory that a form takes; 0 of the file's mapping."""
    if form == "mapped":
        return 0
    if form == "vector":
        return tensor.shape[0] * 4
    rows, columns = tensor.shape
    if form == "dense":
        return rows * columns * 4
    if form == "int8":
        return rows * (columns + 12)
    tiles = -(-rows // INT4_TILE_ROWS)
    table = columns * (INT4_TILE_ROWS // 2 + INT4_HEADER_BYTES)
    scales = columns // tensor.group_size * INT4_TILE_ROWS * 4
    return tiles * (table + scales)
