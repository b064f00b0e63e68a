"""Adapters of PEFT with random weights, and what PEFT makes of them."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def save_adapter(
    folder: Path,
    model: Any,
    *,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    size: float = 0.2,
    **changes: Any,
) -> Path:
    """Save a random adapter of a transformers model, which is left as it was; return its folder.

    ``changes`` are fields of PEFT's ``LoraConfig``.
    """
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": ALL_MODULES}
    with _without_warnings():
        adapted = get_peft_model(model, LoraConfig(**{**settings, **changes}))
        adapted.save_pretrained(folder)
        adapted.unload()
    generator = torch.Generator().manual_seed(seed)
    path = folder / "adapter_model.safetensors"
    tensors = {
        name: (torch.randn(tensor.shape, generator=generator) * size).to(dtype)
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path)
    return folder


def peft_logits(model: Any, folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Return PEFT's logits [tokens, vocab] of an adapter; the model is left as it was."""
    with _without_warnings():
        adapted = PeftModel.from_pretrained(model, folder)
        try:
            with torch.no_grad():
                return adapted(torch.tensor([token_ids])).logits[0]
        finally:
            adapted.unload()


def peft_merged(model: Any, folder: Path) -> Any:
    """Return a model with an adapter merged into it; the model itself is changed."""
    with _without_warnings():
        return PeftModel.from_pretrained(model, folder).merge_and_unload()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """PEFT reads what transformers is about to take away."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
