"""Tiny random checkpoints in Hugging Face form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch
from little_tokenizer import write_tokenizer
from safetensors.torch import save_file

from zse.models.families import all_families, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {name: family.ARCHITECTURES[0] for name, family in all_families().items()}
_TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class MakeCheckpoint(Protocol):
    def __call__(
        self,
        folder: Path,
        family: str = ...,
        *,
        shards: int = ...,
        has_guesses: bool = ...,
        **config: Any,
    ) -> Path: ...


def make_checkpoint_folder(
    folder: Path,
    family: str = "llama",
    *,
    shards: int = 1,
    has_guesses: bool = False,
    **config: Any,
) -> Path:
    """Write a random model; ``config`` overrides config.json."""
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": 96,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 1,
    } | config
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    write_tokenizer(folder)
    generator = torch.Generator().manual_seed(7)
    spec = read_checkpoint(values)
    groups = [*spec.groups(), *(spec.spare_groups() if has_guesses else ())]
    tensors = {
        piece.name: (torch.randn(piece.shape, generator=generator) * 0.05).to(
            _TORCH[values["torch_dtype"]]
        )
        for group in groups
        for weight in group.weights
        for piece in weight.pieces()
    }
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for index in range(shards):
        shard = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        names = list(tensors)[index::shards]
        save_file({name: tensors[name] for name in names}, folder / shard)
        weight_map |= dict.fromkeys(names, shard)
    index_json = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_json))
    return folder


@pytest.fixture(scope="session")
def make_checkpoint() -> MakeCheckpoint:
    return make_checkpoint_folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unsharded bfloat16 llama; read only."""
    return make_checkpoint_folder(tmp_path_factory.mktemp("checkpoints") / "little-llama")
