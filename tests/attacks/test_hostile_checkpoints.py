"""Quantized checkpoints whose tensors or options lie: a clear error, and nothing half-written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed_folders import KINDS, config_of, pack
from little_tokenizer import write_tokenizer
from quantized_folders import awq_tensors, gptq_tensors, random_grid
from safetensors.torch import save_file

from zse.errors import ConversionError
from zse.models.families import read_checkpoint
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.weights import Source

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "torch_dtype": "float16",
}
DOWN = "model.layers.0.mlp.down_proj."
Tensors = dict[str, torch.Tensor]


def nf4() -> Tensors:
    told = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [64, 64]}
    state = list(json.dumps(told).encode())
    return {
        "weight": torch.zeros(2048, 1, dtype=torch.uint8),
        "weight.absmax": torch.ones(64),
        "weight.quant_map": torch.linspace(-1, 1, 16),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(state, dtype=torch.uint8),
    }


def int8() -> Tensors:
    return {"weight": torch.ones(64, 64, dtype=torch.int8), "SCB": torch.ones(64)}


def fp8() -> Tensors:
    return {
        "weight": torch.ones(64, 64).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.ones(1, 1),
    }


GRID = random_grid(64, 64, 32, 1)
FORMATS: dict[str, tuple[dict[str, Any], Callable[[], Tensors]]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        lambda: gptq_tensors(GRID),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda: awq_tensors(GRID)),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, nf4),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8),
    **{
        kind: (config_of(KINDS[kind]), lambda kind=kind: pack(*KINDS[kind], 0, (64, 64))[0])
        for kind in ("int4 asymmetric", "int8 packed", "int8 asymmetric", "nvfp4", "mxfp4")
    },
}
LIES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "missing": lambda _tensor: None,
    "empty": lambda tensor: tensor[:0],
    "one number": lambda tensor: tensor.flatten()[:1],
    "a row too many": lambda tensor: torch.cat((tensor, tensor[:1])),
    "half of it": lambda tensor: tensor[: len(tensor) // 2],
    "one axis more": lambda tensor: tensor.reshape(1, 1, *tensor.shape),
    "another type": lambda tensor: torch.zeros(tensor.shape, dtype=torch.float64),
}


def write(folder: Path, config: dict[str, Any], changed: Tensors) -> None:
    """Write a checkpoint whose one quantized matrix is ``changed``."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}))
    write_tokenizer(folder)
    pieces: list[Source] = [
        piece for weight in read_checkpoint(CONFIG).weights() for piece in weight.pieces()
    ]
    plain = {piece.name: torch.ones(piece.shape, dtype=torch.float16) for piece in pieces}
    del plain[f"{DOWN}weight"]
    tensors = plain | {f"{DOWN}{name}": part.contiguous() for name, part in changed.items()}
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_themselves_are_read(tmp_path: Path, name: str) -> None:
    config, make = FORMATS[name]
    write(tmp_path / "c", config, make())
    assert convert_model(tmp_path / "c", tmp_path / "m.zse").tensors


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", FORMATS)
def test_each_tensor_that_lies_is_an_error_and_leaves_nothing(
    tmp_path: Path, name: str, lie: str
) -> None:
    config, make = FORMATS[name]
    for index, part in enumerate(make()):
        tensors = make()
        changed = LIES[lie](tensors.pop(part))
        if changed is not None:
            if changed.shape == make()[part].shape and changed.dtype == make()[part].dtype:
                continue  # of a single number all of it is left
            tensors[part] = changed
        folder = tmp_path / str(index)
        write(folder, config, tensors)
        with pytest.raises(ConversionError) as caught:
            convert_model(folder, tmp_path / "m.zse")
        assert len(caught.value.message) < 1000
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("size", [0, -2, 1, 2**70, True, 32.0, "32", None, [32]])
@pytest.mark.parametrize("name", ["gptq", "awq", "int4 asymmetric", "nvfp4"])
def test_a_group_size_that_is_none_is_an_error(tmp_path: Path, name: str, size: Any) -> None:
    config, make = FORMATS[name]
    changed = json.loads(json.dumps(config))
    groups = changed.get("config_groups", {"": {"weights": changed}})
    for group in groups.values():
        group["weights"]["group_size"] = size
    write(tmp_path / "c", changed, make())
    with pytest.raises(ConversionError):
        convert_model(tmp_path / "c", tmp_path / "m.zse")
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [None, [], {}, "x", 10**40])
def test_options_of_another_kind_are_an_error_and_no_accident(
    tmp_path: Path, name: str, value: Any
) -> None:
    config, make = FORMATS[name]
    for index, option in enumerate(config):
        if option == "quant_method":
            continue
        folder = tmp_path / str(index)
        write(folder, config | {option: value}, make())
        try:
            convert_model(folder, tmp_path / f"{index}.zse")
        except ConversionError:
            assert not list(tmp_path.glob(f"{index}.zse*"))
