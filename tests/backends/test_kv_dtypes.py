"""What is kept in four bits, what is not, and how close a model stays to itself."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from key_constants import with_constants
from logits import as_tensor

from zse.backends.kv_dtypes import LARGEST_FACTOR, dtypes_of
from zse.backends.torch.kept import NARROW_SCALE_COLUMNS, packed, turned, unpacked
from zse.errors import UnsupportedModelError
from zse.format import ZSEReader
from zse.models.families import read_header
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.spec import ModelSpec

HEADS = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


@pytest.fixture
def path(make_pair: Callable[..., Any]) -> Path:
    return make_pair("llama", "bf16", **HEADS).path


def tokens(count: int = 90) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 320, (count,), generator=generator).tolist()


def spec_of(path: Path) -> ModelSpec:
    with ZSEReader(path) as reader:
        return read_header(reader.header.model_config)


def logits_of(path: Path, **options: Any) -> tuple[torch.Tensor, dict[str, int]]:
    runner = load_runner(
        path, load_options(num_blocks=4, threads=1, exact_activations=True, **options)
    )
    try:
        return as_tensor(runner.logits(tokens())), runner.memory_bytes()
    finally:
        runner.close()


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_four_bits_are_close_to_all_and_a_quarter_and_some_of_sixteen(
    device: str, path: Path
) -> None:
    expected, wide = logits_of(path, device="cpu", kv_dtype="fp16")
    found, narrow = logits_of(path, device=device, kv_dtype="int4")
    error = float((found - expected).norm() / expected.norm())
    assert 1e-4 < error < 0.3  # random weights attend sharply: in eight bits it is 0.02
    assert wide["kv_cache"] >= 3.5 * narrow["kv_cache"]


def test_the_processors_kernels_give_what_torch_gives(path: Path) -> None:
    expected, _ = logits_of(path, device="torch", kv_dtype="int4")
    found, _ = logits_of(path, device="cpu", kv_dtype="int4")
    assert float((found - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_layers_with_large_constants_in_their_keys_keep_eight_bits(
    device: str, make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "constants.zse"
    with_constants(make_pair("qwen2", "bf16", **HEADS).path, path, (1,))
    expected, _ = logits_of(path, device="cpu", kv_dtype="fp32")
    found, narrow = logits_of(path, device=device, kv_dtype="int4")
    _, wide = logits_of(path, device=device, kv_dtype="int8")
    assert float((found - expected).norm() / expected.norm()) < 0.3
    assert narrow["kv_cache"] == pytest.approx(wide["kv_cache"] * (1 + 4.5 / 8.5) / 2, rel=0.01)


def test_a_layer_keeps_eight_bits_from_a_factor_on(make_pair: Callable[..., Any]) -> None:
    spec = spec_of(make_pair("qwen2", "bf16", **HEADS).path)
    factors = {0: array("f", [1.0, LARGEST_FACTOR]), 1: array("f", [1.0, 2 * LARGEST_FACTOR])}
    assert dtypes_of(spec, "int4", factors) == {0: "int4", 1: "int8"}
    assert set(dtypes_of(spec, "int4").values()) == {"int4"}
    assert set(dtypes_of(spec, "int8", factors).values()) == {"int8"}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"head_dim": 80}, "its heads have 80 columns, expected one of 64, 128, 256"),
        ({"softcap": 30.0}, "its scores are capped"),
        ({"latent": object()}, "it keeps a latent"),
    ],
)
def test_what_is_not_kept_in_four_bits_is_named(
    change: dict[str, Any], what: str, make_pair: Callable[..., Any]
) -> None:
    spec = spec_of(make_pair("llama", "bf16", **HEADS).path)
    last = spec.layers[-1]
    changed = replace(last, mixer=replace(last.mixer, **change))
    spec = replace(spec, layers=(*spec.layers[:-1], changed))
    with pytest.raises(UnsupportedModelError, match=f"^layer 1 keeps .* in int4: {what}"):
        dtypes_of(spec, "int4")
    assert dtypes_of(spec, "int8")


@pytest.mark.parametrize("spread", [1e-3, 1.0, 300.0])
def test_codes_are_off_by_a_step_at_most(spread: float) -> None:
    rows = torch.randn(50, 3, 128, generator=torch.Generator().manual_seed(1)) * spread
    codes, scales = packed(rows)
    assert codes.shape == (50, 3, 64)
    assert scales.shape == (50, 3, 8)
    found = unpacked(codes, scales)
    largest = rows.unflatten(-1, (-1, NARROW_SCALE_COLUMNS)).abs().amax(-1, keepdim=True)
    error = (found - rows).unflatten(-1, (-1, NARROW_SCALE_COLUMNS)).abs() / largest
    assert error.max() <= 0.25
    assert error.square().mean().sqrt() < 0.06


def test_what_is_turned_alike_has_the_same_products() -> None:
    left, right = torch.randn(2, 9, 128, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(turned(left) @ turned(right).T, left @ right.T)
    torch.testing.assert_close(turned(turned(left)), left)
    alone = torch.zeros(1, 64)
    alone[0, 40] = 8.0
    assert turned(alone)[0, 32:].abs().unique().tolist() == [pytest.approx(2**0.5)]
