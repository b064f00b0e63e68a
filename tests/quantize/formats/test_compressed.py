"""Checkpoints of compressed-tensors, as its own library packs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed_folders import KINDS, PACKED, config_of, told, write
from quantized_folders import edit_config, edit_tensors

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format import Scheme, ZSEReader
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "model.layers.0"
DOWN = f"{PREFIX}.mlp.down_proj"
ATTENTION = [f"{PREFIX}.self_attn.{name}_proj" for name in "qkv"]
KEPT = {
    **dict.fromkeys([name for name in KINDS if name.startswith("int4")], Scheme.INT4),
    **dict.fromkeys(["int8", "int8 packed", "int8 tensor"], Scheme.INT8),
    "mxfp4": Scheme.MXFP4,
}
"""Kinds whose codes a scheme of ours has."""


def make(make_checkpoint: Any, folder: Path, kind: str) -> dict[str, torch.Tensor]:
    """Write a checkpoint of one kind; return the numbers that its matrices stand for."""
    make_checkpoint(folder, num_hidden_layers=1)
    return write(folder, lambda _name: KINDS[kind], config_of(KINDS[kind]))


def convert(folder: Path, quantization: str | None = None) -> Any:
    return convert_model(folder, folder.parent / "m.zse", quantization)


@pytest.mark.parametrize("kind", KEPT)
def test_codes_that_a_scheme_of_ours_has_are_kept_bit_for_bit(
    make_checkpoint: Any, tmp_path: Path, kind: str
) -> None:
    values = make(make_checkpoint, tmp_path / "c", kind)
    report = convert(tmp_path / "c")
    assert report.kept_packed == 4
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.entry("layers.0.qkv.weight").scheme is KEPT[kind]
        down, joined = reader.tensor("layers.0.down.weight"), reader.tensor("layers.0.qkv.weight")
    # Zero points times scales are rounded to float16; the largest offset is 15 * 0.0064.
    rounding = 0.1 * 2**-11 if "asymmetric" in kind else 0.0
    assert float((down - values[DOWN]).abs().max()) <= rounding
    attention = torch.cat([values[name] for name in ATTENTION])
    assert float((joined - attention).abs().max()) <= rounding


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(KEPT)))
def test_others_are_widened_to_the_numbers_that_they_stand_for(
    make_checkpoint: Any, tmp_path: Path, kind: str
) -> None:
    values = make(make_checkpoint, tmp_path / "c", kind)
    report = convert(tmp_path / "c", "bf16")
    assert report.kept_packed == 0
    assert any("came as compressed-tensors" in words for words in report.warnings)
    with ZSEReader(tmp_path / "m.zse") as reader:
        found = reader.tensor("layers.0.down.weight")
    assert torch.equal(found, values[DOWN].bfloat16().float())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_from_any_row_on(make_checkpoint: Any, tmp_path: Path, kind: str) -> None:
    values = make(make_checkpoint, tmp_path / "c", kind)[DOWN]
    with Checkpoint(tmp_path / "c") as checkpoint:
        for start, stop in ((0, 3), (5, 8), (31, 65), (121, 128)):
            rows = checkpoint.read_rows(f"{DOWN}.weight", start, stop)
            assert torch.equal(rows, values[start:stop])


def test_groups_of_several_kinds_and_matrices_that_were_ignored_stay_what_they_are(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "c", num_hidden_layers=1)
    kinds = {"self_attn": KINDS["int8"], "down_proj": KINDS["int4 group"]}
    config = config_of(*kinds.values(), ignore=["lm_head", "re:.*gate_proj", "re:.*up_proj"])
    write(
        tmp_path / "c",
        lambda name: next((kind for part, kind in kinds.items() if part in name), None),
        config,
    )
    report = convert(tmp_path / "c")
    assert report.kept_packed == 3
    with ZSEReader(tmp_path / "m.zse") as reader:
        schemes = {name: reader.entry(f"layers.0.{name}.weight").scheme for name in NAMES}
    assert schemes == {
        "qkv": Scheme.INT8, "o": Scheme.INT8, "down": Scheme.INT4, "gate_up": Scheme.BF16
    }  # fmt: skip


NAMES = ("qkv", "o", "down", "gate_up")


def test_without_a_choice_eight_bits_that_cannot_be_kept_become_int8(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    make(make_checkpoint, tmp_path / "c", "int8 group")
    report = convert(tmp_path / "c")
    assert report.schemes["int8"] == 6  # the head and the embedding, too
    assert any("stored anew as INT8, which rounds them a second" in w for w in report.warnings)


def test_a_choice_is_for_the_others_and_the_report_says_so(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    make(make_checkpoint, tmp_path / "c", "int4 group")
    report = convert(tmp_path / "c", "int8")
    assert report.kept_packed == report.schemes["int4"] == 4
    assert any("4 matrices stay INT4" in w and "INT8 is for the others" in w
               for w in report.warnings)  # fmt: skip


def test_inputs_whose_groups_are_scattered_are_widened(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    values = make(make_checkpoint, tmp_path / "c", "int4 group")
    order = torch.arange(256, dtype=torch.int32) // 32
    edit_tensors(tmp_path / "c", {f"{DOWN}.weight_g_idx": order.flip(0).contiguous()})
    assert convert(tmp_path / "c", "fp16").kept_packed == 3
    edit_tensors(tmp_path / "c", {f"{DOWN}.weight_g_idx": order})
    (tmp_path / "m.zse").unlink()
    assert convert(tmp_path / "c", "fp16").kept_packed == 4
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert torch.equal(reader.tensor("layers.0.down.weight"), values[DOWN])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (config_of((PACKED, told(4, 32)), format="marlin-24"), "format is 'marlin-24'"),
        (config_of(("mxfp8-quantized", told(4, 32))), "format is 'mxfp8-quantized'"),
        (config_of((PACKED, told(1, 32))), "num_bits is '1'"),
        (config_of((PACKED, told(4, 0))), "group_size"),
        (config_of((PACKED, told(4, 32, strategy="token"))), "strategy is 'token'"),
        (config_of((PACKED, told(4, 32, type="complex"))), "type is 'complex'"),
        (config_of((PACKED, told(4, 32)), config_groups={}), "say nothing of weights"),
        (config_of((PACKED, told(4, 32)), transform_config={"R1": {}}), "transform_config"),
        (config_of((PACKED, told(4, 32)), sparsity_config={"format": "sparse-24"}), "sparse-24"),
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_scale": None}, "no .*down_proj.weight_scale"),
        ({"weight_scale": torch.ones(128, 3)}, "weight_scale has shape"),
        ({"weight_scale": torch.ones(127, 8)}, "weight_scale has shape"),
        ({"weight_scale": torch.ones(128, 4)}, "those of none of the config_groups"),
        ({"weight_scale": torch.ones(128, 8).int()}, "dtype I32"),
        ({"weight_packed": torch.zeros(128, 16).int()}, "weight_packed has shape"),
        ({"weight_shape": torch.tensor([128, 1024])}, "weight_packed has shape"),
        ({"weight_shape": torch.tensor([128, -256])}, "says 128 by -256"),
        ({"weight_shape": torch.tensor([2**40, 2**40])}, "says"),
        ({"weight_shape": torch.tensor([128])}, "weight_shape has shape"),
        ({"weight_zero_point": torch.zeros(3, 8).int()}, "weight_zero_point has shape"),
        ({"weight_g_idx": torch.full((256,), 9, dtype=torch.int32)}, "has groups 9 to 9"),
    ],
)
def test_tensors_that_lie_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    make(make_checkpoint, tmp_path / "c", "int4 group")
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in changes.items()})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))
