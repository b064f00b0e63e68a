"""Folders of random adapters for any model, as PEFT would write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from zse.models.lora.modules import places_at_run_time

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from zse.models.spec import ModelSpec


def write_adapter(
    folder: Path,
    spec: ModelSpec,
    *,
    seed: int = 1,
    rank: int = 4,
    size: float = 0.2,
    dtype: torch.dtype = torch.float32,
    modules: Collection[str] = (),
    **config: Any,
) -> Path:
    """Write an adapter of all modules, or of those whose names end so; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, place in places_at_run_time(spec).items():
        if modules and not module.endswith(tuple(modules)):
            continue
        source = place.source
        shapes = {"A": (rank, source.columns), "B": (source.rows, rank)}
        for side, shape in shapes.items():
            numbers = torch.randn(shape, generator=generator) * size
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = numbers.to(dtype)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of an adapter's configuration."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Put tensors into an adapter's file, or take those that are None out of it."""
    path = folder / "adapter_model.safetensors"
    tensors: dict[str, torch.Tensor | None] = {**load_file(path), **changes}
    save_file({name: one for name, one in tensors.items() if one is not None}, path)
