"""INT4 that is exported as compressed-tensors: the codes stay, and zero gets one of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed_folders import config_of, told, write
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from family_shapes import shape_of
from safetensors.torch import load_file

from zse.errors import UsageError
from zse.format import Scheme, ZSEReader
from zse.format.as_torch import stored_parts
from zse.quantize.convert import convert_model
from zse.quantize.export.int4 import whole_grid
from zse.quantize.export.model import export_model

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "compressed-tensors"
CAME = ("pack-quantized", told(4, 32, symmetric=False))


def values(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Return [rows, K] of codes [rows, K]."""
    size = codes.shape[1] // scales.shape[1]
    centered = codes.float() - zeros.float().repeat_interleave(size, 1)
    return centered * scales.float().repeat_interleave(size, 1)


def test_a_zero_that_is_a_code_loses_nothing() -> None:
    codes = torch.randint(0, 16, (2, 3, 32), dtype=torch.uint8)
    scales, zeros = torch.rand(2, 3).half().float() * 0.01 + 0.001, torch.tensor([[0, 8, 15]] * 2)
    scales = scales.half().float()
    grid = whole_grid(codes, scales, (-zeros * scales).half().float())
    assert torch.equal(grid.codes, codes.flatten(1))
    assert torch.equal(grid.zeros, zeros.int())
    assert torch.equal(grid.scales.float(), scales)
    assert bool(grid.is_same.all())


def test_a_zero_between_codes_moves_to_the_nearest_and_codes_stay() -> None:
    codes = torch.randint(0, 16, (4, 2, 32), dtype=torch.uint8)
    scales, offsets = torch.full((4, 2), 0.01), torch.full((4, 2), -0.0734)
    grid = whole_grid(codes, scales, offsets)
    assert torch.equal(grid.codes, codes.flatten(1))
    assert set(grid.zeros.flatten().tolist()) == {7}
    assert not bool(grid.is_same.any())


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_group_on_one_side_of_zero_gets_a_grid_that_ends_there(sign: float) -> None:
    codes = torch.arange(32, dtype=torch.uint8).remainder(16).view(1, 1, 32)
    scales, offsets = torch.tensor([[0.001]]), torch.tensor([[sign * 0.05 - (sign < 0) * 0.015]])
    grid = whole_grid(codes, scales, offsets)
    wanted = (codes.float() * scales.unsqueeze(2) + offsets.unsqueeze(2)).flatten(1)
    found = values(grid.codes, grid.scales, grid.zeros)
    assert float((found - wanted).abs().max()) <= 0.065 / 15 * 0.51


@pytest.mark.parametrize("number", [0.0, 0.25, -0.25])
def test_a_group_of_one_number_keeps_it(number: float) -> None:
    codes, zero = torch.zeros(1, 1, 32, dtype=torch.uint8), torch.zeros(1, 1)
    grid = whole_grid(codes, zero, torch.full((1, 1), number))
    found = values(grid.codes, grid.scales, grid.zeros)
    assert float((found - number).abs().max()) <= abs(number) * 2**-10


def int4_of(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    with ZSEReader(path) as reader:
        return {
            name: {role: part.clone() for role, part in stored_parts(reader, name).items()}
            for name in reader.names()
            if reader.entry(name).scheme is Scheme.INT4
        }


def test_a_checkpoint_that_came_so_gives_its_own_codes_scales_and_zeros(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "model", num_hidden_layers=1)
    write(tmp_path / "model", lambda _name: CAME, config_of(CAME))
    convert_model(tmp_path / "model", tmp_path / "m.zse")
    report = export_model(tmp_path / "m.zse", tmp_path / "out", format=FORMAT)
    assert report.packed_matrices == 7
    assert not report.warnings
    before = load_file(tmp_path / "model" / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    packed = [name for name in before if "_proj.weight" in name]
    assert len(packed) == 28
    for name in packed:
        assert torch.equal(after[name].float(), before[name].float()), name
    told_after = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert told_after["ignore"] == ["lm_head"]


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "qwen3_next"])
def test_codes_of_our_own_int4_come_back(make_checkpoint: Any, tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path / "model", family, **shape_of(family))
    convert_model(tmp_path / "model", tmp_path / "a.zse", "int4", group_size=32)
    report = export_model(tmp_path / "a.zse", tmp_path / "out", format=FORMAT)
    assert "zero between two codes" in report.warnings[0]
    convert_model(tmp_path / "out", tmp_path / "b.zse")
    before, after = int4_of(tmp_path / "a.zse"), int4_of(tmp_path / "b.zse")
    assert set(before) == set(after)
    for name, parts in before.items():
        same = (parts["qweight"] == after[name]["qweight"]).float().mean()
        assert float(same) > 0.999, name  # but for groups on one side of zero


def test_the_library_reads_the_numbers_that_are_meant(make_checkpoint: Any, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", num_hidden_layers=1)
    numbers = write(tmp_path / "model", lambda _name: CAME, config_of(CAME))
    convert_model(tmp_path / "model", tmp_path / "m.zse")
    export_model(tmp_path / "m.zse", tmp_path / "out", format=FORMAT)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    scheme = QuantizationScheme(**config["config_groups"]["group_0"])
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    for name, wanted in numbers.items():
        state = {
            key.removeprefix(f"{name}."): part.float() if key.endswith("scale") else part
            for key, part in tensors.items()
            if key.startswith(f"{name}.")
        }
        assert torch.equal(compressor.decompress(state, scheme)["weight"].float(), wanted)


@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_a_model_whose_zeros_are_in_the_middle(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    import transformers

    came = ("pack-quantized", told(4, 32))
    make_checkpoint(tmp_path / "model", num_hidden_layers=1, torch_dtype="float16")
    write(tmp_path / "model", lambda _name: came, config_of(came))
    convert_model(tmp_path / "model", tmp_path / "m.zse", lm_head="fp16")
    export_model(tmp_path / "m.zse", tmp_path / "out", format=FORMAT)
    export_model(tmp_path / "m.zse", tmp_path / "plain", dtype="fp16")
    logits = []
    for folder in ("out", "plain"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / folder, dtype=torch.float32
        )
        with torch.inference_mode():
            logits.append(model.eval()(torch.tensor([[3, 17, 95, 4]])).logits)
    assert float((logits[0] - logits[1]).abs().max() / logits[1].abs().max()) < 5e-3


def test_a_file_without_int4_is_refused(make_checkpoint: Any, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "model", num_hidden_layers=1)
    convert_model(tmp_path / "model", tmp_path / "m.zse", "int8")
    with pytest.raises(UsageError, match="keeps INT4 matrices; the file has fp32, int8"):
        export_model(tmp_path / "m.zse", tmp_path / "out", format=FORMAT)
    assert not list(tmp_path.glob("out*"))
