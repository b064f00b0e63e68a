"""Codes of a GGUF file that a scheme of ours holds are kept, number for number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from gguf_files import write_gguf

from zse.errors import ConversionError
from zse.format.as_torch import dequantize, stored_parts
from zse.format.reader import ZSEReader
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.quantize.conftest import MakeCheckpoint


def numbers_in(path: Path, name: str) -> tuple[torch.Tensor, str]:
    """Return the numbers that a file's matrix stands for, and its scheme."""
    with ZSEReader(path) as reader:
        entry = next(one for one in reader.header.tensors if one.name == name)
        return dequantize(entry, stored_parts(reader, name)).float(), entry.scheme.value


def numbers_of(source: Path, *names: str) -> torch.Tensor:
    """Return the numbers of a GGUF file's matrices by the package gguf, one below the other."""
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    parts = [gguf.dequantize(found[name].data, found[name].tensor_type) for name in names]
    return torch.cat([torch.from_numpy(part.copy()) for part in parts])


@pytest.mark.parametrize(
    ("kind", "scheme"), [("Q4_0", "int4"), ("Q4_1", "int4"), ("MXFP4", "mxfp4")]
)
@pytest.mark.parametrize("asked", [None, "int8"])
def test_every_number_of_a_type_that_fits_is_as_it_was(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, kind: str, scheme: str, asked: str | None
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "qwen2", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "qwen2", kind)
    report = convert_model(source, tmp_path / "m.zse", asked, tokenizer=folder)
    assert report.kept_packed == 4
    for ours, theirs in {
        "layers.0.qkv.weight": ("attn_q", "attn_k", "attn_v"),
        "layers.0.gate_up.weight": ("ffn_gate", "ffn_up"),
        "layers.0.down.weight": ("ffn_down",),
    }.items():
        found, kept = numbers_in(tmp_path / "m.zse", ours)
        assert kept == scheme
        assert torch.equal(found, numbers_of(source, *(f"blk.0.{one}.weight" for one in theirs)))


def test_codes_of_heads_that_lie_in_another_order_are_kept(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "llama", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "llama", "Q4_0")
    convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    found, kept = numbers_in(tmp_path / "m.zse", "layers.0.qkv.weight")
    query = numbers_of(source, "blk.0.attn_q.weight")
    halves = query.view(4, 16, 2, 128).transpose(1, 2).reshape(128, 128)
    assert kept == "int4"
    assert torch.equal(found[:128], halves)


def test_experts_of_gpt_oss_stay_mxfp4(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    numbers = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
    folder = make_checkpoint(
        tmp_path / "hf", "gpt_oss", num_hidden_layers=1, sliding_window=16, **numbers
    )
    source = write_gguf(tmp_path / "m.gguf", folder, "gpt_oss", "MXFP4")
    convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    found, kept = numbers_in(tmp_path / "m.zse", "layers.0.experts.gate_up.weight")
    gate, up = (numbers_of(source, f"blk.0.ffn_{part}_exps.weight") for part in ("gate", "up"))
    expected = torch.cat((gate.view(4, 64, 128), up.view(4, 64, 128)), 1).view(-1, 128)
    assert kept == "mxfp4"
    assert torch.equal(found, expected)
    found, kept = numbers_in(tmp_path / "m.zse", "layers.0.experts.down.weight")
    assert kept == "mxfp4"
    assert torch.equal(found, numbers_of(source, "blk.0.ffn_down_exps.weight").view(-1, 64))


def test_types_of_another_grid_are_rounded_anew_and_that_is_said(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "qwen2", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "qwen2", "Q8_0")
    report = convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    assert report.kept_packed == 0
    assert report.schemes["int8"] >= 4  # eight bits stay eight
    assert any("came as Q8_0" in warning for warning in report.warnings)


def test_a_scale_that_is_no_number_is_refused_by_name(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "hf", "qwen2", num_hidden_layers=1)
    source = write_gguf(tmp_path / "m.gguf", folder, "qwen2", "Q4_0")
    tensor = next(
        one for one in gguf.GGUFReader(source).tensors if one.name == "blk.0.ffn_down.weight"
    )
    data = bytearray(source.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 2] = b"\x00\x7c"
    source.write_bytes(data)
    with pytest.raises(ConversionError, match=r"finite|range"):
        convert_model(source, tmp_path / "m.zse", tokenizer=folder)
    assert not (tmp_path / "m.zse").exists()
