"""Adapters that become part of the numbers: rows of a matrix plus what an adapter adds to them.

Sums are float32, before anything is quantized. A matrix that comes quantized already and would be
kept so takes none.
"""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import TYPE_CHECKING

from zse.errors import LoRAError
from zse.format.as_torch import matrix_from
from zse.models.lora.modules import places_in_files
from zse.models.lora.read import read_adapter
from zse.models.lora.stacks import stacks_of
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from zse.backends.adapters import LowRank
    from zse.models.spec import ModelSpec, WeightGroup
    from zse.models.weights import WeightSpec
    from zse.quantize.checkpoint import Checkpoint

_MOST_RANK = 4096


@record
class _Part:
    """What is added to a tensor of the checkpoint, its rows in the order of the file."""

    first_row: int
    """Of the tensor's rows: an expert's among those of all."""
    scale: float
    down: torch.Tensor
    """float32 [rank, columns]."""
    up: torch.Tensor
    """float32 [rows, rank]."""


class Merging:
    """What adapters add to a model's matrices.

    Args:
        folders: Adapters in PEFT's form; what they add to one matrix adds up.
        spec: The model.

    Raises:
        ZSEError: As ``read_adapter``.
    """

    def __init__(self, folders: Sequence[Path], spec: ModelSpec) -> None:
        self._parts: dict[str, list[_Part]] = {}
        self._pieces: dict[str, list[tuple[str, int, int]]] = {}
        self._digest = hashlib.sha256()
        places, stacks = places_in_files(spec), stacks_of(spec)
        weights = {weight.name: weight for weight in spec.weights()}
        for folder in folders:
            adapter = read_adapter(folder, folder.name, places, max_rank=_MOST_RANK, stacks=stacks)
            for name, parts in adapter.parts.items():
                for part in parts:
                    self._add(weights[name], part)

    def to_json(self) -> dict[str, str]:
        """Return what a file's header says of them: one digest of all."""
        return {"merged_lora": self._digest.hexdigest()}

    def check(self, plan: Sequence[WeightGroup]) -> None:
        """Refuse to change what is kept as the checkpoint has quantized it.

        Raises:
            LoRAError: An adapter would.
        """
        weights = (weight for group in plan for weight in group.weights)
        for piece in (piece for weight in weights for piece in weight.pieces()):
            if piece.name in self._parts and piece.packing is not None:
                raise LoRAError(
                    f"{piece.name} is quantized in the checkpoint, so that no adapter can be "
                    "merged into it",
                    hint="Convert the checkpoint that was not quantized.",
                )

    def merged(self, name: str, start: int, rows: torch.Tensor) -> torch.Tensor:
        """Return rows of a tensor from ``start`` on, in the file's order, with what is added."""
        if name not in self._parts:
            return rows
        rows, stop = rows.float().clone(), start + rows.shape[0]
        for part in self._parts[name]:
            first = max(start, part.first_row)
            end = min(stop, part.first_row + part.up.shape[0])
            if first < end:
                up = part.up[first - part.first_row : end - part.first_row]
                rows[first - start : end - start] += part.scale * (up @ part.down)
        return rows

    def _add(self, weight: WeightSpec, part: LowRank) -> None:
        """Remember a part for each tensor of the checkpoint whose rows it changes."""
        for matrix in (part.down, part.up):
            self._digest.update(matrix.data)
        self._digest.update(repr((part.first_row, part.scale)).encode())
        down, up = (matrix_from(m.data, m.scheme, m.columns) for m in (part.down, part.up))
        self._add_rows(weight, part.first_row, part.scale, down, up)

    def _add_rows(
        self, weight: WeightSpec, first: int, scale: float, down: torch.Tensor, up: torch.Tensor
    ) -> None:
        if weight.name not in self._pieces:
            pieces = list(weight.pieces())
            ends = list(accumulate(piece.rows for piece in pieces))
            names = [piece.name for piece in pieces]
            self._pieces[weight.name] = list(zip(names, [0, *ends], ends, strict=False))
        for name, begin, stop in self._pieces[weight.name]:
            start, end = max(first, begin), min(first + up.shape[0], stop)
            if start < end:
                own = up[start - first : end - first]
                part = _Part(first_row=start - begin, scale=scale, down=down, up=own)
                self._parts.setdefault(name, []).append(part)


def merging_of(checkpoint: Checkpoint, folders: Sequence[Path]) -> Merging | None:
    """Return what adapters add to a checkpoint; None where there are none.

    Raises:
        LoRAError: One is damaged, for another model, or for what stays quantized.
        NotFoundError: A folder is none of an adapter.
    """
    if not folders:
        return None
    merging = Merging(folders, checkpoint.spec)
    merging.check(checkpoint.plan)
    return merging
