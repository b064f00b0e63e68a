"""GPTQ and AWQ checkpoints: our INT4 has their codes, and their scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from quantized_folders import (
    Grid,
    awq_tensors,
    edit_config,
    edit_tensors,
    gptq_tensors,
    random_grid,
    rewritten,
)

from zse.engine.requirements import read_facts
from zse.errors import CheckpointError, ConversionError, UnsupportedModelError
from zse.format import Scheme, ZSEReader
from zse.format.as_torch import stored_parts, unpack_nibbles
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.convert import convert_model
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ("gptq", "awq")
ATTENTION = ("q_proj", "k_proj", "v_proj")
DOWN = "model.layers.0.mlp.down_proj"


def make(
    make_checkpoint: Any,
    folder: Path,
    method: str,
    family: str = "llama",
    *,
    group_size: int = 64,
    order: torch.Tensor | None = None,
    shape: dict[str, int] | None = None,
    **config: Any,
) -> dict[str, Grid]:
    """Write a checkpoint; return its grids by the name of the matrix."""
    make_checkpoint(folder, family, num_hidden_layers=1, torch_dtype="float16", **(shape or {}))
    grids: dict[str, Grid] = {}

    def quantized(base: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        size = weight.shape[1] if group_size == -1 else group_size
        rows, columns = weight.shape
        bits = config.get("bits", 4)
        grid = grids[base[:-1]] = random_grid(rows, columns, size, len(grids), bits)
        if method == "awq":
            return awq_tensors(grid)
        less = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
        indices = torch.arange(weight.shape[1], dtype=torch.int32) // size
        if order is not None and base.startswith(DOWN):
            indices = indices[order]
        return gptq_tensors(grid, stored_less=less, bits=bits) | {"g_idx": indices}

    told = {"quant_method": method, "bits": 4, "group_size": group_size}
    rewritten(folder, told | config, quantized)
    return grids


def convert(folder: Path, quantization: str = "int4") -> Any:
    return convert_model(folder, folder.parent / "m.zse", quantization)


def parts_of(reader: ZSEReader, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes [N, K], scales and offsets [N, groups] of an INT4 tensor, as stored."""
    entry = reader.entry(name)
    parts = stored_parts(reader, name)
    codes = unpack_nibbles(parts["qweight"], entry.group_size).reshape(entry.shape)
    pairs = parts["scale_zero"].contiguous().view(torch.float16).view(entry.shape[0], -1, 2)
    return codes, pairs[..., 0], pairs[..., 1]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("method", METHODS)
def test_codes_and_scales_are_the_checkpoints_own_in_fused_rows_too(
    make_checkpoint: Any, tmp_path: Path, method: str, family: str
) -> None:
    grids = make(make_checkpoint, tmp_path / "c", method, family)
    report = convert(tmp_path / "c", "nf4")
    assert report.kept_packed == 4
    assert not any("stored anew" in words for words in report.warnings)
    prefix = "model.layers.0.self_attn"
    joined = [grids[f"{prefix}.{name}"] for name in ATTENTION]
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert reader.entry("layers.0.qkv.weight").scheme is Scheme.INT4
        codes, scales, offsets = parts_of(reader, "layers.0.qkv.weight")
        values = reader.tensor("layers.0.qkv.weight")
    zeros = torch.cat([grid.zeros for grid in joined])
    wanted_scales = torch.cat([grid.scales for grid in joined])
    assert torch.equal(codes, torch.cat([grid.codes for grid in joined]).to(torch.uint8))
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(offsets, (-zeros * wanted_scales.float()).half())
    # The one rounding is that of the offset, to float16: half a unit in the last of 11 bits.
    exact = torch.cat([grid.values() for grid in joined])
    largest = float((zeros * wanted_scales.float()).max())
    assert float((values - exact).abs().max()) <= largest * 2**-11


@pytest.mark.parametrize("group_size", [32, 64, 128, -1])
@pytest.mark.parametrize("method", METHODS)
def test_zero_points_of_eight_lose_nothing_in_groups_of_any_size(
    make_checkpoint: Any, tmp_path: Path, method: str, group_size: int
) -> None:
    grids = make(make_checkpoint, tmp_path / "c", method, group_size=group_size)
    grid = grids[DOWN]
    even = Grid(grid.codes, torch.full_like(grid.zeros, 8), grid.scales)
    tensors = awq_tensors(even) if method == "awq" else gptq_tensors(even)
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in tensors.items()})
    convert(tmp_path / "c")
    with ZSEReader(tmp_path / "m.zse") as reader:
        assert torch.equal(reader.tensor("layers.0.down.weight"), even.values())


def test_the_second_version_of_gptq_stores_zero_points_as_they_are(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    grids = make(make_checkpoint, tmp_path / "c", "gptq", checkpoint_format="gptq_v2")
    convert(tmp_path / "c")
    with ZSEReader(tmp_path / "m.zse") as reader:
        offsets = parts_of(reader, "layers.0.down.weight")[2]
    grid = grids[DOWN]
    assert torch.equal(offsets, (-grid.zeros * grid.scales.float()).half())


def test_inputs_in_the_order_of_their_activations_are_widened_by_their_own_groups(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1))
    grids = make(make_checkpoint, tmp_path / "c", "gptq", order=order, desc_act=True)
    report = convert(tmp_path / "c", "fp16")
    assert report.kept_packed == 3
    assert "1 matrices came as GPTQ; they were widened to float32 and stored anew." in (
        report.warnings
    )
    with ZSEReader(tmp_path / "m.zse") as reader:
        found = reader.tensor("layers.0.down.weight").float()
    assert torch.equal(found, grids[DOWN].values((torch.arange(256) // 64)[order]).half().float())


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_gptq_of_other_bits_is_widened_to_the_numbers_that_it_stands_for(
    make_checkpoint: Any, tmp_path: Path, bits: int
) -> None:
    grids = make(make_checkpoint, tmp_path / "c", "gptq", bits=bits)
    report = convert(tmp_path / "c", "fp16")
    assert report.kept_packed == 0
    with ZSEReader(tmp_path / "m.zse") as reader:
        found = reader.tensor("layers.0.down.weight").float()
    assert torch.equal(found, grids[DOWN].values().half().float())


def test_a_matrix_that_was_left_out_is_quantized_with_those_that_it_is_joined_to(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    grids = make(make_checkpoint, tmp_path / "c", "awq")
    gone = "model.layers.0.self_attn.k_proj"
    plain = torch.full((64, 128), 0.5, dtype=torch.float16)
    parts: dict[str, torch.Tensor | None] = dict.fromkeys(
        f"{gone}.{ending}" for ending in ("qweight", "qzeros", "scales")
    )
    edit_tensors(tmp_path / "c", parts | {f"{gone}.weight": plain})
    report = convert(tmp_path / "c", "fp16")
    assert report.kept_packed == 3
    with ZSEReader(tmp_path / "m.zse") as reader:
        rows = reader.tensor("layers.0.qkv.weight").float()
    values = grids["model.layers.0.self_attn.q_proj"].values()
    assert torch.equal(rows[:128], values.half().float())
    assert torch.equal(rows[128:192], plain.float())


@pytest.mark.parametrize("method", METHODS)
def test_experts_keep_their_codes(make_checkpoint: Any, tmp_path: Path, method: str) -> None:
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 64}
    grids = make(make_checkpoint, tmp_path / "c", method, "qwen3_moe", shape=experts)
    assert convert(tmp_path / "c").kept_packed == 4
    prefix = "model.layers.0.mlp.experts"
    names = [f"{prefix}.{index}.{name}_proj" for index in range(2) for name in ("gate", "up")]
    with ZSEReader(tmp_path / "m.zse") as reader:
        codes, scales, _ = parts_of(reader, "layers.0.experts.gate_up.weight")
    assert torch.equal(codes, torch.cat([grids[name].codes for name in names]).to(torch.uint8))
    assert torch.equal(scales, torch.cat([grids[name].scales for name in names]))


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_the_same_from_any_row_on(
    make_checkpoint: Any, tmp_path: Path, method: str
) -> None:
    grid = make(make_checkpoint, tmp_path / "c", method)[DOWN]
    with Checkpoint(tmp_path / "c") as checkpoint:
        whole = checkpoint.read_packed(f"{DOWN}.weight", 0, 128)
        for start, stop in ((0, 3), (5, 8), (7, 18), (121, 128)):
            rows = checkpoint.read_rows(f"{DOWN}.weight", start, stop)
            assert torch.equal(rows, grid.values()[start:stop])
            for role, part in checkpoint.read_packed(f"{DOWN}.weight", start, stop).items():
                assert torch.equal(part, whole[role][start:stop])


def test_zero_points_of_gptq_are_any_of_sixteen(make_checkpoint: Any, tmp_path: Path) -> None:
    grid = make(make_checkpoint, tmp_path / "c", "gptq")[DOWN]
    zeros = torch.arange(grid.zeros.numel()).view(grid.zeros.shape) % 16
    tensors = gptq_tensors(Grid(grid.codes, (zeros - 1) % 16 + 1, grid.scales))  # 0 less one: 15
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in tensors.items()})
    with Checkpoint(tmp_path / "c") as checkpoint:
        rows = checkpoint.read_rows(f"{DOWN}.weight", 0, 128)
    assert torch.equal(rows, Grid(grid.codes, zeros, grid.scales).values())


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_that_the_model_has_not_is_left_out_if_it_is_zero(
    make_checkpoint: Any, tmp_path: Path, value: float
) -> None:
    make(make_checkpoint, tmp_path / "c", "gptq")
    edit_tensors(tmp_path / "c", {f"{DOWN}.bias": torch.full((128,), value)})
    if not value:
        assert convert(tmp_path / "c").kept_packed == 4
        return
    with pytest.raises(CheckpointError, match=r"no place .*down_proj\.bias"):
        convert(tmp_path / "c")


def test_the_size_of_a_quantized_checkpoint_is_known_without_reading_it(
    make_checkpoint: Any, tmp_path: Path
) -> None:
    make(make_checkpoint, tmp_path / "c", "awq")
    assert read_facts(tmp_path / "c", load_settings()).spec.hidden_size == 128


@pytest.mark.parametrize(
    ("method", "config", "words"),
    [
        ("gptq", {"bits": 5}, "bits is '5'; expected 2 or 3 or 4 or 8"),
        ("gptq", {"bits": True}, "bits"),
        ("gptq", {"group_size": 16}, "groups of 16"),
        ("gptq", {"group_size": 0}, "groups of 0"),
        ("gptq", {"group_size": "64"}, "group_size"),
        ("gptq", {"group_size": 96}, "groups of 96"),
        ("gptq", {"format": "bitblas"}, "format is 'bitblas'"),
        ("gptq", {"pack_dtype": "int16"}, "pack_dtype"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("awq", {"bits": 2}, "bits"),
        ("awq", {"version": "gemv"}, "version is 'gemv'; expected gemm"),
        ("awq", {"zero_point": False}, "zero_point"),
    ],
)
def test_grids_that_ours_is_not_are_refused_before_any_work(
    make_checkpoint: Any, tmp_path: Path, method: str, config: dict[str, Any], words: str
) -> None:
    make(make_checkpoint, tmp_path / "c", method)
    told = {"quant_method": method, "bits": 4, "group_size": 64} | config
    edit_config(tmp_path / "c", quantization_config=told)
    with pytest.raises(UnsupportedModelError, match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"scales": None}, CheckpointError, "no .*down_proj.scales"),
        ({"qzeros": None}, CheckpointError, "no .*down_proj.qzeros"),
        ({"scales": torch.zeros(5, 128)}, CheckpointError, "shape"),
        (
            {"scales": torch.zeros(4, 12)},
            CheckpointError,
            "12 columns; expected codes of 4 bits to fill int32",
        ),
        ({"scales": torch.zeros(512)}, CheckpointError, "two dimensions"),
        ({"qzeros": torch.zeros(4, 8, dtype=torch.int32)}, CheckpointError, "qzeros has shape"),
        ({"qzeros": torch.zeros(4, 16)}, UnsupportedModelError, "qzeros has dtype F32"),
        ({"weight": torch.zeros(128, 256)}, CheckpointError, "quantized and as it was before"),
        ({"qweight": None}, CheckpointError, "no tensor .*down_proj.weight"),
    ],
)
def test_damaged_matrices_are_refused_before_any_work(
    make_checkpoint: Any,
    tmp_path: Path,
    method: str,
    changes: dict[str, torch.Tensor | None],
    error: type[Exception],
    words: str,
) -> None:
    make(make_checkpoint, tmp_path / "c", method)
    edit_tensors(tmp_path / "c", {f"{DOWN}.{name}": part for name, part in changes.items()})
    with pytest.raises(error, match=words):
        convert(tmp_path / "c")
    assert not list(tmp_path.glob("m.zse*"))


@pytest.mark.parametrize("group", [-1, 4])
def test_a_group_that_is_none_is_refused(make_checkpoint: Any, tmp_path: Path, group: int) -> None:
    make(make_checkpoint, tmp_path / "c", "gptq")
    indices = torch.full((256,), group, dtype=torch.int32)
    edit_tensors(tmp_path / "c", {f"{DOWN}.g_idx": indices})
    with pytest.raises(CheckpointError, match="expected 0 to 3"):
        convert(tmp_path / "c")


def test_sorted_inputs_need_their_groups(make_checkpoint: Any, tmp_path: Path) -> None:
    make(make_checkpoint, tmp_path / "c", "gptq", desc_act=True)
    edit_tensors(tmp_path / "c", {f"{DOWN}.g_idx": None})
    with pytest.raises(CheckpointError, match=r"no .*down_proj\.g_idx"):
        convert(tmp_path / "c")


def test_a_scale_of_no_number_is_refused(make_checkpoint: Any, tmp_path: Path) -> None:
    make(make_checkpoint, tmp_path / "c", "gptq")
    scales = torch.full((4, 128), float("inf"), dtype=torch.float16)
    edit_tensors(tmp_path / "c", {f"{DOWN}.scales": scales})
    with pytest.raises(ConversionError, match="not finite"):
        convert(tmp_path / "c")
