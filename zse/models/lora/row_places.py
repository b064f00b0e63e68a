"""Where the rows of a checkpoint's tensor lie in a model's own matrix, without torch."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from zse.models.weights import RowGroups, RowHalves

if TYPE_CHECKING:
    from zse.models.weights import Order


def rows_in_order(order: Order, num_rows: int) -> list[int]:
    """Return which row of the tensor each row of the matrix is; whole periods of them."""
    period = order.period
    within = _within_period(order)
    return [first + row for first in range(0, num_rows, period) for row in within]


def _within_period(order: Order) -> list[int]:
    if isinstance(order, RowHalves):
        first = order.head_rows - order.turning
        ends = range(first, order.head_rows)
        return [*range(first), *ends[::2], *ends[1::2]]
    if isinstance(order, RowGroups):
        group = sum(order.sizes)
        starts = [sum(order.sizes[:kind]) for kind in range(len(order.sizes))]
        kinds = zip(starts, order.sizes, strict=True)
        return [
            number * group + start + row
            for start, size in kinds
            for number in range(order.num_groups)
            for row in range(size)
        ]
    fixed = order.num_fixed
    view = order.view[fixed:]
    strides = [prod(view[axis + 1 :]) for axis in range(len(view))]
    axes = [axis - fixed for axis in order.axes[fixed:]]
    places = product(*(range(view[axis]) for axis in axes))
    moved = [strides[axis] for axis in axes]
    return [sum(map(int.__mul__, place, moved)) for place in places]


def reordered_rows(data: bytes, row_bytes: int, order: Order) -> bytes:
    """Return a tensor's rows, each of so many bytes, as the matrix has them."""
    rows = rows_in_order(order, len(data) // row_bytes)
    return b"".join([data[row * row_bytes : (row + 1) * row_bytes] for row in rows])
