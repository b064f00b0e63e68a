"""The rows of a checkpoint's tensor as the model's file wants them: turned, reordered, shifted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from zse.models.weights import RowGroups, RowHalves

if TYPE_CHECKING:
    from zse.models.weights import Order, Source, WeightSpec
    from zse.quantize.checkpoint import Checkpoint


def rows_together(source: Source) -> int:
    """Return how many rows must be read at once, at least: a multiple of it at any start."""
    members = source.shape[-1] if source.is_transposed else 1
    return math.lcm(members, source.order.period if source.order is not None else 1)


def read_rows(
    checkpoint: Checkpoint, weight: WeightSpec, source: Source, start: int, stop: int
) -> torch.Tensor:
    """Return rows ``start`` to ``stop`` of one piece of a weight, [rows, columns] or [numbers].

    Both are multiples of ``rows_together``. Values are in the dtype of the checkpoint, unless the
    weight's own factor or offset, or what is merged into it, makes them float32.

    Raises:
        CheckpointError: A file is shorter than its header says.
    """
    if source.is_transposed:
        inputs, outputs = source.shape[-2:]
        first, end = start // outputs * inputs, stop // outputs * inputs
        members = checkpoint.read_rows(source.name, first, end).view(-1, inputs, outputs)
        rows = members.transpose(1, 2).reshape(stop - start, inputs)
    elif source.is_flat:
        width = source.shape[-1]
        first, end = start // width, -(-stop // width)
        numbers = checkpoint.read_rows(source.name, first, end).reshape(-1)
        rows = numbers[start - first * width : stop - first * width]
    else:
        rows = checkpoint.read_rows(source.name, start, stop)
    if source.order is not None:
        rows = reordered(rows, source.order)
    if weight.factor != 1.0:
        rows = rows.float() * weight.factor
    if checkpoint.merging is not None:
        rows = checkpoint.merging.merged(source.name, start, rows)
    return rows.float() + weight.offset if weight.offset else rows


def restored(rows: torch.Tensor, weight: WeightSpec, source: Source) -> torch.Tensor:
    """Return a tensor of the checkpoint from all rows of a piece: the way back of ``read_rows``."""
    if weight.offset or weight.factor != 1.0:
        rows = (rows.float() - weight.offset) / weight.factor
    rows = in_checkpoint_order(rows, source)
    if source.is_transposed:
        *members, inputs, outputs = source.shape
        rows = rows.reshape(*members, outputs, inputs).transpose(-1, -2)
    return rows.reshape(source.shape)


def in_checkpoint_order(rows: torch.Tensor, source: Source) -> torch.Tensor:
    """Return whole periods of a file's rows in the order that the checkpoint has."""
    if source.order is None:
        return rows
    places = reordered(torch.arange(rows.shape[0]), source.order)
    return rows[places.argsort()]


def reordered(rows: torch.Tensor, order: Order) -> torch.Tensor:
    """Return whole periods of rows in another order."""
    if isinstance(order, RowHalves):
        heads = rows.reshape(-1, order.head_rows, *rows.shape[1:])
        first = order.head_rows - order.turning
        parts = (heads[:, :first], heads[:, first::2], heads[:, first + 1 :: 2])
        return torch.cat(parts, 1).reshape(rows.shape)
    if isinstance(order, RowGroups):
        groups = rows.reshape(order.num_groups, -1, *rows.shape[1:])
        kinds = torch.split(groups, list(order.sizes), 1)
        return torch.cat([kind.flatten(0, 1) for kind in kinds])
    fixed, columns = order.num_fixed, rows.shape[1:]
    viewed = rows.reshape(-1, *order.view[fixed:], *columns)
    axes = [0, *(1 + axis - fixed for axis in order.axes[fixed:])]
    return viewed.permute(*axes, *range(len(axes), viewed.dim())).reshape(rows.shape)
