"""GGUF files of little checkpoints, as llama.cpp's converter makes them, by the package ``gguf``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import gguf
import gguf_changes
import numpy as np
import torch
from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {
    "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3": "gemma3",
    "olmo3": "olmo2", "glm4_moe": "glm4moe", "gpt_oss": "gpt-oss", "qwen3_next": "qwen3next",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe",
}  # fmt: skip
"""Family -> the architecture's name, where it has another."""
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_EXPERT = re.compile(r"(.*experts)\.(\d+)\.(.*)")
_TURNED = ("llama", "mixtral", "smollm3", "granite")


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows as llama.cpp's ``permute`` puts them: the two of a pair beside each other."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path, checkpoint: Path, family: str, kind: str = "F32", **changes: Any
) -> Path:
    """Write a checkpoint folder as a GGUF file; ``changes`` replace settings, None leaves one out."""
    config = json.loads((checkpoint / "config.json").read_text())
    name = ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, name)
    for key, value in {**_settings(config, name), **changes}.items():
        if value is not None:
            _add(writer, key, value)
    tensors = _tensors(config, name, family, checkpoint)
    if family == "gemma4":
        tensors["rope_freqs.weight"] = gguf_changes.factors_of_gemma4(config)
    for theirs, values in tensors.items():
        _add_tensor(writer, theirs, values.numpy(), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(
    config: dict[str, Any], name: str, family: str, checkpoint: Path
) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by the file's names, as the converter changes them."""
    number = next(one for one, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    count = config["num_hidden_layers"] + 1
    names = gguf.get_tensor_name_map(number, count)
    found = {}
    for stored, tensor in sorted(_stacked(load_file(checkpoint / "model.safetensors")).items()):
        values = tensor.float()
        if family in _TURNED and re.search(r"self_attn\.[qk]_proj", stored):
            heads = "num_attention_heads" if ".q_proj" in stored else "num_key_value_heads"
            values = permuted(values, config[heads])
        if family in ("gemma2", "gemma3") and stored.endswith("norm.weight"):
            values = values + 1
        if stored.endswith("shared_expert_gate.weight"):
            values = values[0]
        for hf_name, changed in gguf_changes.changed(family, config, stored, values):
            theirs = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
            theirs = hf_name if hf_name.startswith("blk.") else theirs
            assert theirs, hf_name
            found[theirs] = changed
    return found


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, np.ascontiguousarray(values))
    else:
        writer.add_tensor(name, gguf.quantize(values, number), raw_dtype=number)


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors, those of experts joined: ``experts.gate_proj.weight`` of all."""
    whole: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            whole.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            whole[name] = tensor
    return {
        name: torch.stack([value[index] for index in range(len(value))])
        if isinstance(value, dict)
        else value
        for name, value in whole.items()
    }


def _settings(config: dict[str, Any], name: str) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    settings = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim", config["hidden_size"] // heads),
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config.get("rope_theta"),
        "attention.sliding_window": config.get("sliding_window"),
        "expert_count": next((config[one] for one in _COUNTS if one in config), None),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        **gguf_changes.settings(config),
    }
    return {f"{name}.{key}": value for key, value in settings.items()}


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](key, value)


def tokenizer_settings(tokenizer: dict[str, Any], pre: str) -> dict[str, Any]:
    """Return the settings that a byte-level tokenizer.json becomes."""
    vocabulary = tokenizer["model"]["vocab"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    ids = {**vocabulary, **{token["content"]: number for number, token in added.items()}}
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if number in added else 1 for number in range(len(tokens))],
        "tokenizer.ggml.merges": merges,
    }
