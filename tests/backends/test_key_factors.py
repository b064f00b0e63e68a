"""Constants in keys do not cost what few bits keep of the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from key_constants import CONSTANT, with_constants
from logits import as_tensor

from zse.backends.key_factors import factors_of, key_factors
from zse.engine.requirements import read_facts
from zse.models.memory import estimate_memory
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_large_constants_in_keys_leave_the_rest_of_them_as_close(
    device: str,
    make_pair: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "constants.zse"
    with_constants(make_pair("qwen2", "bf16").path, path, (0, 1))
    tokens = torch.randint(3, 320, (60,), generator=torch.Generator().manual_seed(0)).tolist()

    def logits(kv_dtype: str) -> torch.Tensor:
        options = load_options(device=device, num_blocks=4, threads=1, kv_dtype=kv_dtype)
        runner = load_runner(path, options)
        found = as_tensor(runner.logits(tokens))
        runner.close()
        return found

    expected, narrow = logits("fp32"), logits("int8")
    monkeypatch.setattr("zse.backends.key_factors.USUAL_SIZE", 2 * CONSTANT)
    undivided = logits("int8")
    assert (narrow - expected).norm() < 0.25 * (undivided - expected).norm()


def test_factors_are_powers_of_two_the_same_for_both_of_a_pair(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    spec = with_constants(make_pair("qwen2", "bf16").path, tmp_path / "constants.zse", ())
    attention = spec.layers[0].mixer
    half, first = attention.head_dim // 2, attention.query_columns
    bias = [0.0] * (first + 2 * attention.kv_columns)
    bias[first + 3] = -200.0  # 25 times the usual: 32 is the nearest power in logarithms
    bias[first + attention.head_dim + half] = 30.0
    factors = factors_of(attention, bias)
    expected = [1.0] * attention.kv_columns
    expected[3] = expected[3 + half] = 32.0
    expected[attention.head_dim] = expected[attention.head_dim + half] = 4.0
    assert list(factors) == expected


@pytest.mark.parametrize("constant", [math.inf, -math.inf, math.nan, 3.4e38])
def test_factors_are_finite_whatever_a_file_holds(
    make_pair: Callable[..., Any], tmp_path: Path, constant: float
) -> None:
    spec = with_constants(make_pair("qwen2", "bf16").path, tmp_path / "constants.zse", ())
    attention = spec.layers[0].mixer
    factors = factors_of(attention, [constant] * (attention.query_columns * 3))
    assert all(0 < factor < math.inf for factor in factors)


def test_only_keys_with_large_constants_have_factors_and_their_readers_have_the_same(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    spec = with_constants(make_pair("qwen2", "bf16").path, tmp_path / "constants.zse", ())
    first, second = spec.layers
    size = first.mixer.query_columns + 2 * first.mixer.kv_columns
    plain, large = [0.1] * size, [CONSTANT] * size
    vectors = {first.mixer.qkv.bias: large, second.mixer.qkv.bias: plain}
    assert set(key_factors(spec, vectors.__getitem__)) == {0}
    reading = replace(second, mixer=replace(second.mixer, kv_of_layer=0))
    found = key_factors(replace(spec, layers=(first, reading)), vectors.__getitem__)
    assert found[1] is found[0]


def test_an_estimate_counts_eight_bits_where_constants_keep_them(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    path, sizes = tmp_path / "constants.zse", {"head_dim": 64, "num_hidden_layers": 2}
    with_constants(make_pair("qwen2", "int8", **sizes).path, path, (1,))
    facts = read_facts(path, load_settings())
    for on_gpu in (False, True):
        kv_bytes = {
            dtype: estimate_memory(facts, "", on_gpu=on_gpu, kv_dtype=dtype).kv_bytes
            for dtype in ("int4", "int8")
        }
        without = replace(facts, key_factors={})
        all_int4 = estimate_memory(without, "", on_gpu=on_gpu, kv_dtype="int4").kv_bytes
        assert kv_bytes["int4"] == (all_int4 + kv_bytes["int8"]) / 2
