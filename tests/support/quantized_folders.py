"""Little checkpoints in the formats of GPTQ, AWQ and FP8, packed number by number by their rules."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


class Grid(NamedTuple):
    """Random numbers of a matrix [N, K] of codes."""

    codes: torch.Tensor
    """[N, K], 0 to 15 of four bits"""
    zeros: torch.Tensor
    """[N, K/G], 1 to 15"""
    scales: torch.Tensor
    """[N, K/G] float16"""

    @property
    def groups(self) -> int:
        return self.zeros.shape[1]

    def values(self, group_of: torch.Tensor | None = None) -> torch.Tensor:
        """Return [N, K] float32: code minus zero point, times scale."""
        columns = self.codes.shape[1]
        if group_of is None:
            group_of = torch.arange(columns) // (columns // self.groups)
        centered = self.codes - self.zeros[:, group_of.long()]
        return centered * self.scales[:, group_of.long()].float()


def random_grid(rows: int, columns: int, group_size: int, key: int, bits: int = 4) -> Grid:
    generator = torch.Generator().manual_seed(key)
    groups = (rows, columns // group_size)
    return Grid(
        codes=torch.randint(0, 1 << bits, (rows, columns), generator=generator),
        zeros=torch.randint(1, 1 << bits, groups, generator=generator),
        scales=(torch.rand(groups, generator=generator) * 0.02 + 0.005).half(),
    )


def packed_ints(nibbles: list[int]) -> int:
    """Return the int32 of eight codes, the first in the lowest bits."""
    number = sum(code << (4 * place) for place, code in enumerate(nibbles))
    return number - 2**32 if number >= 2**31 else number


def packed_along_outputs(codes: torch.Tensor, columns: tuple[int, ...]) -> torch.Tensor:
    """Pack [inputs, outputs] to int32 [inputs, outputs / 8]."""
    rows = [
        [
            packed_ints([row[first + column] for column in columns])
            for first in range(0, len(row), 8)
        ]
        for row in codes.tolist()
    ]
    return torch.tensor(rows, dtype=torch.int32)


def in_a_row(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the codes of each row behind each other, as one number of many bits."""
    rows = []
    for row in codes.tolist():
        number = sum(code << (bits * place) for place, code in enumerate(row))
        length_bytes = len(row) * bits // 8
        rows.append(torch.frombuffer(bytearray(number.to_bytes(length_bytes, "little")),
                                     dtype=torch.int32))  # fmt: skip
    return torch.stack(rows)


def gptq_tensors(grid: Grid, *, stored_less: int = 1, bits: int = 4) -> dict[str, torch.Tensor]:
    """Return the tensors of AutoGPTQ, without g_idx; its second version stores no less."""
    return {
        "qweight": in_a_row(grid.codes, bits).t().contiguous(),  # along the inputs
        "qzeros": in_a_row(grid.zeros.t() - stored_less, bits),
        "scales": grid.scales.t().contiguous(),
    }


def awq_tensors(grid: Grid) -> dict[str, torch.Tensor]:
    """Return the tensors of AutoAWQ's GEMM version."""
    return {
        "qweight": packed_along_outputs(grid.codes.t(), AWQ_COLUMNS),
        "qzeros": packed_along_outputs(grid.zeros.t(), AWQ_COLUMNS),
        "scales": grid.scales.t().contiguous(),
    }


def rewritten(
    folder: Path,
    config: Mapping[str, Any],
    quantized: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor] | None],
) -> Path:
    """Put what ``quantized`` returns in the place of each linear layer's matrix."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        base = name.removesuffix("weight")
        if (parts := quantized(base, tensors[name])) is not None:
            del tensors[name]
            tensors |= {f"{base}{ending}": part for ending, part in parts.items()}
    save_file(tensors, path, {"format": "pt"})
    edit_config(folder, quantization_config=dict(config))
    return folder


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """Replace tensors of a checkpoint; None takes one away."""
    path = folder / "model.safetensors"
    tensors = {name: t for name, t in (load_file(path) | dict(changes)).items() if t is not None}
    save_file(tensors, path, {"format": "pt"})
