"""Hostile adapters end in clear errors: nothing runs, nothing hangs, nothing is kept."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest
import torch
from random_adapters import edit_config, edit_tensors, write_adapter

from zse.backends.adapters import adapted_matrices
from zse.backends.cpu.adapters import NativeAdapter
from zse.backends.torch.adapters import BoundAdapter
from zse.errors import LoRAError, NotFoundError, RefusedError
from zse.kernels.native.library import load
from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.uniform import TensorNames, UniformDecoder

if TYPE_CHECKING:
    from pathlib import Path

SPEC = UniformDecoder(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
).spec(TensorNames())
PLACES = places_at_run_time(SPEC)
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"peft_type": "IA3"}, "expected 'LORA'"),
    "DoRA": ({"use_dora": True}, "DoRA"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "biases": ({"bias": "all"}, "biases"),
    "trained biases": ({"lora_bias": True}, "lora_bias"),
    "trained tokens": ({"trainable_token_indices": [1]}, "trained tokens"),
    "a changed base": ({"init_lora_weights": "pissa_niter_4"}, "a changed base model"),
    "a rank of nothing": ({"r": 0}, "expected 1 to 64"),
    "a rank of much": ({"r": 10**9}, "expected 1 to 64"),
    "a rank that is none": ({"r": "8"}, "expected 1 to 64"),
    "a rank of truth": ({"r": True}, "expected 1 to 64"),
    "no alpha": ({"lora_alpha": None}, "expected a number"),
    "an alpha that is none": ({"lora_alpha": float("nan")}, "expected a number"),
    "an endless alpha": ({"lora_alpha": float("inf")}, "expected a number"),
    "a slow expression": ({"rank_pattern": {"(a+)+b": 4}}, "expected the end of a module's name"),
    "a pattern that is none": ({"alpha_pattern": [1]}, "is no object"),
    "a rank beside the file's": ({"r": 8}, r"has shape \[4, \d+\], expected \[8, "),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", SPEC)


def read(folder: Path) -> Any:
    return read_adapter(folder, "hostile", PLACES, max_rank=64)


def put_header(folder: Path, header: Any, *, length: int | None = None, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "adapter_model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def test_an_adapter_that_is_none_of_these_is_read(folder: Path) -> None:
    assert len(read(folder).parts) == 4


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_would_answer_wrongly_is_refused_by_name(
    folder: Path, name: str
) -> None:
    changes, message = CONFIGS[name]
    edit_config(folder, **changes)
    with pytest.raises(LoRAError, match=message):
        read(folder)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"[" * 100_000, b"\xff\xfe"])
def test_a_configuration_that_is_no_object_is_refused(folder: Path, data: bytes) -> None:
    (folder / "adapter_config.json").write_bytes(data)
    with pytest.raises(LoRAError):
        read(folder)


def test_a_configuration_of_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / "adapter_config.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LoRAError, match="1099511627776 bytes"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.lm_head.weight", "is no matrix of LoRA"),
        (f"{FIRST}.lora_magnitude_vector", "is no matrix of LoRA"),
        (f"{FIRST}.lora_B.bias", "is no matrix of LoRA"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "is no matrix of LoRA"),
        ("base_model.model.lm_head.lora_A.weight", "which is no matrix of this model"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "no matrix of this"),
        ("../../etc/passwd.lora_A.weight", "no matrix of this model"),
        (f"{FIRST}.lora_A.default.weight", "has two matrices A"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(folder: Path, name: str, message: str) -> None:
    edit_tensors(folder, {name: torch.zeros(4, 64)})
    with pytest.raises(LoRAError, match=message):
        read(folder)


def test_half_a_pair_is_refused(folder: Path) -> None:
    edit_tensors(folder, {f"{FIRST}.lora_B.weight": None})
    with pytest.raises(LoRAError, match=r"one of the two matrices of .*lora_A"):
        read(folder)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(4, 65), r"shape \[4, 65\], expected \[4, 64\]"),
        (torch.zeros(4, 64, 1), r"shape \[4, 64, 1\]"),
        (torch.zeros(0, 64), r"shape \[0, 64\]"),
        (torch.zeros(4, 64, dtype=torch.int32), "dtype I32"),
        (torch.zeros(4, 64, dtype=torch.float64), "dtype F64"),
    ],
)
def test_a_tensor_of_another_shape_or_type_is_refused(
    folder: Path, tensor: torch.Tensor, message: str
) -> None:
    edit_tensors(folder, {f"{FIRST}.lora_A.weight": tensor})
    with pytest.raises(LoRAError, match=message):
        read(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_are_none_are_refused_by_every_backend(
    folder: Path, value: float, dtype: torch.dtype
) -> None:
    matrix = torch.zeros(4, 64, dtype=dtype)
    matrix[3, 5] = value
    edit_tensors(folder, {f"{FIRST}.lora_A.weight": matrix})
    adapter = read(folder)
    with pytest.raises(LoRAError, match="not finite"):
        BoundAdapter(adapter, adapted_matrices(SPEC))
    with pytest.raises(LoRAError, match="not finite"):
        NativeAdapter(adapter, adapted_matrices(SPEC), load())


ENTRY = {"dtype": "F32", "shape": [4, 64], "data_offsets": [0, 1024]}
HEADERS: dict[str, tuple[Any, int | None]] = {
    "longer than the file": ({}, 1 << 60),
    "negative": ({}, (1 << 64) - 1),
    "no JSON": (b"{" * 50, None),
    "deep": (b"[" * 100_000, None),
    "a list": ([], None),
    "nothing": ({}, None),
    "beyond the file": ({"a.lora_A.weight": {**ENTRY, "data_offsets": [0, 1 << 40]}}, None),
    "backwards": ({"a.lora_A.weight": {**ENTRY, "data_offsets": [8, 0]}}, None),
    "too short for its shape": ({"a.lora_A.weight": {**ENTRY, "data_offsets": [0, 8]}}, None),
    "sizes that overflow": ({"a.lora_A.weight": {**ENTRY, "shape": [1 << 63, 1 << 63]}}, None),
    "many axes": ({"a.lora_A.weight": {**ENTRY, "shape": [1] * 10_000}}, None),
    "a type that is no text": ({"a.lora_A.weight": {**ENTRY, "dtype": ["F32"]}}, None),
    "an entry that is no object": ({"a.lora_A.weight": 7}, None),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused(folder: Path, name: str) -> None:
    header, length = HEADERS[name]
    put_header(folder, header, length=length, data=bytes(1024))
    with pytest.raises(LoRAError):
        read(folder)


def test_a_header_of_gigabytes_is_not_read(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 30))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(LoRAError, match="its header claims 1073741824 bytes"):
        read(folder)


def test_pickle_is_refused(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(RefusedError, match="pickle"):
        read(folder)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(LoRAError, match="no regular file"):
        read(folder)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_what_is_not_there_is_told(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(NotFoundError, match=name):
        read(folder)
