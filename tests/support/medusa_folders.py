"""Random heads of Medusa as they are published, beside a random checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers
from family_shapes import shape_of
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path


def write_checkpoint(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a float32 checkpoint without a tokenizer."""
    torch.manual_seed(3)
    shape = shape_of(family, eos_token_id=None, **changes)
    config = transformers.AutoConfig.for_model(family, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder


def head_tensors(
    checkpoint: Path, num_heads: int = 3, num_blocks: int = 1, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Return heads for a checkpoint, which guess much as its model chooses the next token."""
    generator = torch.Generator().manual_seed(5)
    own = load_file(checkpoint / "model.safetensors")
    matrix = own.get("lm_head.weight", own["model.embed_tokens.weight"])
    vocab_size, hidden = matrix.shape
    tensors = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            name = f"{prefix}{head}.{block}.linear"
            tensors[f"{name}.weight"] = torch.randn(hidden, hidden, generator=generator) * 0.05
            tensors[f"{name}.bias"] = torch.randn(hidden, generator=generator) * 0.05
        noise = torch.randn(vocab_size, hidden, generator=generator) * 0.01
        tensors[f"{prefix}{head}.{num_blocks}.weight"] = matrix + noise
    return tensors


def write_heads(folder: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
