"""FP8 checkpoints: each number times its scale, then stored in the scheme that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from quantized_folders import edit_config, edit_tensors, rewritten

from zse.errors import CheckpointError, ConversionError, UnsupportedModelError
from zse.format import Scheme, ZSEReader
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

DOWN = "model.layers.0.mlp.down_proj"
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def compressed(strategy: str, **weights: Any) -> dict[str, Any]:
    told = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": told | weights}},
        "ignore": ["lm_head"],
    }


KINDS: dict[str, dict[str, Any]] = {
    "blocks": BLOCKS,
    "tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "compressed tensor": compressed("tensor"),
    "compressed channel": compressed("channel"),
    "compressed blocks": compressed("block", block_structure=[128, 128]),
}


def shape_of_scale(kind: str, rows: int, columns: int) -> tuple[int, ...]:
    if "blocks" in kind:
        return (-(-rows // 128), -(-columns // 128))
    return {"tensor": (), "compressed tensor": (1,)}.get(kind, (rows, 1))


def make(
    make_checkpoint: Any, folder: Path, kind: str, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Write a checkpoint; return the numbers that its matrices stand for."""
    make_checkpoint(folder, "qwen2", num_hidden_layers=1, intermediate_size=320)
    values: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(3)
    name = "weight_scale_inv" if kind == "blocks" else "weight_scale"

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, columns = weight.shape
        numbers = (torch.randn(rows, columns, generator=generator) * 20).to(torch.float8_e4m3fn)
        shape = shape_of_scale(kind, rows, columns)
        scale = (torch.rand(shape, generator=generator) * 0.01 + 0.001).to(dtype)
        wide = scale.float()
        if "blocks" in kind:
            wide = torch.kron(wide, torch.ones(128, 128))[:rows, :columns]
        values[base[:-1]] = numbers.float() * wide
        return {"weight": numbers, name: scale, "input_scale": torch.tensor(0.5)}

    rewritten(folder, KINDS[kind], quantized)
    return values


def convert(folder: Path, quantization: str = "fp16") -> Any:
    return convert_model(folder, folder.parent / "m.zse", quantization)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_widened_by_the_scale_of_their_block_row_or_matrix(
    make_checkpoint: Any, tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    values = make(make_checkpoint, tmp_path / "c", kind, dtype)
    report = convert(tmp_path / "c")
    assert report.kept_packed == 0
    title = "compressed-tensors" if kind.startswith("compressed") else "FP8"
    words = f"4 matrices came as {title}; they were widened to float32 and stored anew."
    assert words in report.warnings
    with ZSEReader(tmp_path / "m.zse") as reader:
        down = reader.tensor("layers.0.down.weight").float()
        joined = reader.tensor("layers.0.gate_up.weight").float()
    gate_up = [values[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up")]
    assert torch.equal(down, values[DOWN].half().float())
    assert torch.equal(joined, torch.cat(gate_up).half().float())


def test_they_are_stored_in_the_scheme_that_was_asked_for(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    values = make(make_checkpoint, tmp_path / "c", "blocks")
    convert(tmp_path / "c", "int8")
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.entry("layers.0.down.weight").scheme is Scheme.INT8
        found = reader.tensor("layers.0.down.weight")
    steps = values[DOWN].abs().amax(1, keepdim=True) / 127
    assert bool(((found - values[DOWN]).abs() <= steps * 0.501).all())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**BLOCKS, "fmt": "e5m2"}, "fmt is 'e5m2'; expected e4m3"),
        ({**BLOCKS, "weight_block_size": [128]}, "two whole numbers"),
        ({**BLOCKS, "weight_block_size": [0, 128]}, "two whole numbers"),
        ({**BLOCKS, "weight_block_size": [128, 2**40]}, "two whole numbers"),
        ({**compressed("tensor"), "format": "dense"}, "format is 'dense'"),
        ({**compressed("tensor"), "config_groups": {}}, "say nothing of weights"),
        ({**compressed("tensor"), "config_groups": {"a": [1]}}, "say nothing of weights"),
        ({**compressed("tensor"), "transform_config": {"R1": {}}}, "transform_config"),
        ({**compressed("tensor"), "sparsity_config": {"format": "sparse-24"}}, "sparse-24"),
        ({**compressed("tensor"), "sparsity_config": 3}, "sparsity_config"),
        (compressed("tensor", num_bits=6), "num_bits is '6'"),
        (compressed("tensor", num_bits=4), "strategy is 'tensor'"),
        (compressed("group"), "group_size is 'None'"),
        (compressed("block", block_structure=[0, 128]), "two whole numbers"),
    ],
)
def test_other_numbers_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    make(make_checkpoint, tmp_path / "c", "blocks")
    edit_config(tmp_path / "c", quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weight_scale_inv": None}, CheckpointError, "no .*down_proj.weight_scale_inv"),
        ({"weight_scale_inv": torch.ones(1, 2)}, CheckpointError, "weight_scale_inv has shape"),
        ({"weight_scale_inv": torch.ones(1, 3).int()}, UnsupportedModelError, "dtype I32"),
        ({"weight": torch.zeros(128, 320)}, CheckpointError, "weight_scale_inv"),
        ({"weight": torch.zeros(8).to(torch.float8_e4m3fn)}, CheckpointError, "matrix of FP8"),
        ({"weight": torch.zeros(128, 320).to(torch.float8_e5m2)}, UnsupportedModelError, "F8_E5M2"),
    ],
)
def test_damaged_matrices_are_refused_before_any_work(
    make_checkpoint: Any,
    tmp_path: Path,
    changes: dict[str, torch.Tensor | None],
    error: type[Exception],
    words: str,
) -> None:
    make(make_checkpoint, tmp_path / "c", "blocks")
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in changes.items()})
    with pytest.raises(error, match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


def test_a_number_that_is_none_is_refused(make_checkpoint: Any, tmp_path: Path) -> None:
    make(make_checkpoint, tmp_path / "c", "blocks")
    bytes_of_none = torch.full((128, 320), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    edit_tensors(tmp_path / "c", {f"{DOWN}.weight": bytes_of_none})
    with pytest.raises(ConversionError, match=r"layers\.0\.down\.weight.*not finite"):
        convert(tmp_path / "c")
