"""How activations and the KV cache lie in device memory: addresses and sizes, nothing owned.

The numbers here are also compiled into kernels, which take them from here.
"""

from __future__ import annotations

from typing import TypeAlias

from zse.records import record

ACTIVATION_GROUP = 128
"""Consecutive activations that share an int8 scale."""
BLOCK_TOKENS = 32
"""Tokens of one cache block."""
SCALE_CHANNELS = 32
"""Channels of an int8 key or value that share a scale."""


@record
class Quantized:
    """Int8 activations: ``value = code * scale`` of its group of 128 columns."""

    rows: int
    columns: int
    codes: int
    """Address of int8 [rows, columns]."""
    scales: int
    """Address of float32 [rows, columns / 128]."""
    sums: int
    """Address of float32 [rows, columns / 128]: scale times the sum of the group's codes."""


@record
class Plain:
    """16-bit activations."""

    rows: int
    columns: int
    values: int
    """Address of bfloat16 [rows, columns]."""


@record
class Partials:
    """Float32 summands of a matrix product that was split along K; their sum is the result.

    The reader adds them in order of the first dimension, so the result does not depend on which
    program finished first.
    """

    rows: int
    columns: int
    splits: int
    values: int
    """Address of float32 [splits, rows, columns]."""
    whole_rows: int = 0
    """Rows of the product that these are a part of, if they are: the distance between splits."""

    @property
    def split_rows(self) -> int:
        """Rows from the start of one split to the start of the next."""
        return self.whole_rows or self.rows

    def part(self, first_row: int, rows: int) -> Partials:
        """Return some of the rows."""
        return Partials(
            rows=rows,
            columns=self.columns,
            splits=self.splits,
            values=self.values + first_row * self.columns * 4,
            whole_rows=self.split_rows,
        )


Activation: TypeAlias = Quantized | Plain
