"""Checkpoints of bitsandbytes, as its own functions quantize them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from quantized_folders import edit_config, edit_tensors, rewritten

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format import Scheme, ZSEReader
from zse.format.as_torch import stored_parts, unpack_nibbles
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # it tells what it would like to have installed
functional = pytest.importorskip("bitsandbytes.functional")

DOWN = "model.layers.0.mlp.down_proj"
FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
EIGHT = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}


def four_bits(
    weight: torch.Tensor, kind: str = "nf4", block: int = 64, *, is_nested: bool = False
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return what a checkpoint has of a matrix, and the numbers that they stand for."""
    packed, state = functional.quantize_4bit(
        weight.float(), blocksize=block, quant_type=kind, compress_statistics=is_nested
    )
    values = functional.dequantize_4bit(packed, state) if is_nested else meant(packed, state)
    told = {f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}
    return {"weight": packed, **told}, values


def meant(packed: torch.Tensor, state: Any) -> torch.Tensor:
    """Return what codes stand for; 0.50's CPU kernel with AVX-512 misreads blocks of 512."""
    codes = torch.stack([packed.view(-1) >> 4, packed.view(-1) & 15], 1).view(-1).long()
    largest = state.absmax.view(-1).repeat_interleave(state.blocksize)
    return (state.code[codes] * largest[: codes.numel()]).view(state.shape)


def eight_bits(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    largest = weight.float().abs().amax(1)
    codes = (weight.float() * (127 / largest).unsqueeze(1)).round().to(torch.int8)
    told = {"SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return {"weight": codes, **told}, functional.int8_vectorwise_dequant(codes, largest)


def make(
    make_checkpoint: Any, folder: Path, config: dict[str, Any], quantize: Any
) -> dict[str, torch.Tensor]:
    """Write a checkpoint; return the numbers of its matrices."""
    make_checkpoint(folder, num_hidden_layers=1)
    values: dict[str, torch.Tensor] = {}

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors, values[base[:-1]] = quantize(weight)
        return tensors

    rewritten(folder, config, quantized)
    return values


def convert(folder: Path, quantization: str | None = None) -> Any:
    return convert_model(folder, folder.parent / "m.zse", quantization)


def down_of(path: Path) -> tuple[Scheme, torch.Tensor]:
    with ZSEReader(path) as reader:
        return reader.entry("layers.0.down.weight").scheme, reader.tensor("layers.0.down.weight")


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("block", [64, 128, 256])
def test_codes_of_nf4_stay_and_maxima_become_float16(
    make_checkpoint: Any, tmp_path: Path, block: int, is_nested: bool
) -> None:
    columns = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
    make_checkpoint(tmp_path / "c", num_hidden_layers=1, **columns)
    kept: dict[str, torch.Tensor] = {}

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors, kept[base[:-1]] = four_bits(weight, block=block, is_nested=is_nested)
        if base.startswith(DOWN):
            kept["codes"] = tensors["weight"]
        return tensors

    rewritten(tmp_path / "c", FOUR, quantized)
    report = convert(tmp_path / "c")
    assert report.kept_packed == report.schemes["nf4"] == 4
    with ZSEReader(tmp_path / "m.zse") as reader:
        parts = stored_parts(reader, "layers.0.down.weight")
        group = reader.entry("layers.0.down.weight").group_size
        values = reader.tensor("layers.0.down.weight")
    assert group == min(block, 128)
    codes = unpack_nibbles(parts["qweight"], group).reshape(-1, 2)
    assert torch.equal(codes[:, 0] * 16 + codes[:, 1], kept["codes"].view(-1))
    assert float(((values - kept[DOWN]).abs() - kept[DOWN].abs() * 2**-11).max()) <= 1e-9


def test_maxima_that_float16_holds_lose_nothing(make_checkpoint: Any, tmp_path: Path) -> None:
    def quantize(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        blocks = weight.float().view(-1, 64)
        blocks[:, 0] = 0.125  # the largest of each
        return four_bits(blocks.clamp(-0.125, 0.125).view(weight.shape))

    values = make(make_checkpoint, tmp_path / "c", FOUR, quantize)
    convert(tmp_path / "c")
    scheme, found = down_of(tmp_path / "m.zse")
    assert scheme is Scheme.NF4
    assert torch.equal(found, values[DOWN])


@pytest.mark.parametrize(("kind", "block"), [("fp4", 64), ("nf4", 512)])
def test_fp4_and_blocks_that_run_over_rows_are_widened(
    make_checkpoint: Any, tmp_path: Path, kind: str, block: int
) -> None:
    values = make(
        make_checkpoint, tmp_path / "c", FOUR, lambda weight: four_bits(weight, kind, block)
    )
    report = convert(tmp_path / "c", "bf16")
    assert report.kept_packed == 0
    assert "4 matrices came as bitsandbytes; they were widened to float32 and stored anew." in (
        report.warnings
    )
    assert torch.equal(down_of(tmp_path / "m.zse")[1], values[DOWN].bfloat16().float())
    with Checkpoint(tmp_path / "c") as checkpoint:
        for start, stop in ((0, 3), (5, 8), (121, 128)):
            rows = checkpoint.read_rows(f"{DOWN}.weight", start, stop)
            assert torch.equal(rows, values[DOWN][start:stop])


def test_eight_bits_keep_their_codes(make_checkpoint: Any, tmp_path: Path) -> None:
    values = make(make_checkpoint, tmp_path / "c", EIGHT, eight_bits)
    assert convert(tmp_path / "c").kept_packed == 4
    scheme, found = down_of(tmp_path / "m.zse")
    assert scheme is Scheme.INT8
    # 1 / 127 is rounded once here, and otherwise there.
    assert float(((found - values[DOWN]).abs() - values[DOWN].abs() * 1e-6).max()) <= 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**FOUR, "load_in_8bit": True}, "expected one of them to be true"),
        ({**FOUR, "load_in_4bit": None}, "expected one of them to be true"),
        ({**FOUR, "bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is 'bfloat16'"),
    ],
)
def test_other_options_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    make_checkpoint(tmp_path / "c", num_hidden_layers=1)
    edit_config(tmp_path / "c", quantization_config=config)
    with pytest.raises(UnsupportedModelError, match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


STATE = "weight.quant_state.bitsandbytes__nf4"
TOLD = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [128, 256]}
NESTED = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.1}


def state(**changes: Any) -> torch.Tensor:
    return torch.tensor(list(json.dumps(TOLD | NESTED | changes).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight.absmax": None}, r"no .*down_proj\.weight\.absmax"),
        ({"weight.absmax": torch.ones(3, dtype=torch.uint8)}, "absmax has shape"),
        ({"weight.absmax": torch.ones(512)}, "absmax has dtype F32"),
        ({"weight.nested_absmax": torch.ones(3)}, "nested_absmax has shape"),
        ({"weight.nested_quant_map": None}, "no nested_quant_map"),
        ({"weight.quant_map": torch.full((16,), torch.nan)}, "not finite"),
        ({"weight": torch.ones(3, 1, dtype=torch.uint8)}, "weight has shape"),
        ({STATE: state(shape=[128, 512])}, "weight has shape"),
        ({STATE: state(shape=[2**40, 2**40])}, "its shape is"),
        ({STATE: state(shape=[128, 255])}, "even number"),
        ({STATE: state(shape=None)}, "its shape is None"),
        ({STATE: state(blocksize=0)}, "blocksize is 0"),
        ({STATE: state(nested_blocksize=0)}, "nested_blocksize is 0"),
        ({STATE: state(nested_offset="much")}, "nested_offset is much"),
        ({STATE: torch.tensor([91, 93], dtype=torch.uint8)}, "expected a JSON object"),
        ({STATE: torch.zeros(5000, dtype=torch.uint8)}, "at most 4096 bytes"),
    ],
)
def test_tensors_that_lie_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    make(make_checkpoint, tmp_path / "c", FOUR, lambda w: four_bits(w, is_nested=True))
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in changes.items()})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SCB": None}, r"no .*down_proj\.SCB"),
        ({"SCB": torch.ones(3)}, "SCB has shape"),
        ({"weight_format": torch.tensor(1, dtype=torch.uint8)}, "weight_format is '1'"),
    ],
)
def test_rows_of_bytes_that_lie_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    make(make_checkpoint, tmp_path / "c", EIGHT, eight_bits)
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in changes.items()})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))
