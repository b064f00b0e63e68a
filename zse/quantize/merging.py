"""Adapters that become part of the numbers: rows of a matrix plus what an adapter adds to them.

Sums are float32, before anything is quantized. A matrix that comes quantized already and would be
kept so takes none.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from zse.errors import LoRAError
from zse.format.as_torch import matrix_from
from zse.models.lora.modules import places_in_files
from zse.models.lora.read import read_adapter
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from zse.backends.adapters import LowRank
    from zse.models.spec import ModelSpec, WeightGroup
    from zse.quantize.checkpoint import Checkpoint

_MOST_RANK = 4096


@record
class _Part:
    """What is added to a tensor of the checkpoint, its rows in the order of the file."""

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
        self._digest = hashlib.sha256()
        places = places_in_files(spec)
        names = {(one.weight.name, one.first_row): one.source.name for one in places.values()}
        for folder in folders:
            adapter = read_adapter(folder, folder.name, places, max_rank=_MOST_RANK)
            for weight, parts in adapter.parts.items():
                for part in parts:
                    found = self._parts.setdefault(names[weight, part.first_row], [])
                    found.append(self._part(part))

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
        for part in self._parts.get(name, ()):
            up = part.up[start : start + rows.shape[0]]
            rows = rows.float() + part.scale * (up @ part.down)
        return rows

    def _part(self, part: LowRank) -> _Part:
        for matrix in (part.down, part.up):
            self._digest.update(matrix.data)
        self._digest.update(repr((part.first_row, part.scale)).encode())
        down, up = (matrix_from(m.data, m.scheme, m.columns) for m in (part.down, part.up))
        return _Part(scale=part.scale, down=down, up=up)


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
