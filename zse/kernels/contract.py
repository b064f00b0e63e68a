"""What an operation promises: operands, results, tolerance.

Every backend is tested against the operation's torch reference within this tolerance.
"""

from __future__ import annotations

from zse.records import record


@record
class Operand:
    """One tensor that goes in or comes out."""

    name: str
    shape: tuple[str, ...]
    """Symbolic sizes: T tokens, H hidden, N rows, K columns, V vocabulary, D head width,
    HQ query heads, HK key and value heads, S slots, P positions."""
    dtypes: tuple[str, ...]


@record
class Contract:
    """The promise of one operation."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    relative_tolerance: float
    """Largest error over largest value, for a backend that computes in float32."""
    relative_tolerance_16bit: float
    """The same for a backend that computes in 16 bits or with 8-bit activations."""


def operand(name: str, shape: str, *dtypes: str) -> Operand:
    """Return an operand; ``shape`` is sizes separated by spaces, dtypes default to f32."""
    return Operand(name=name, shape=tuple(shape.split()), dtypes=dtypes or ("f32",))
