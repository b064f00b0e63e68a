"""Layers with huge key biases are found."""

from __future__ import annotations

from zse.kernels.attention.outliers import kv_layers_kept_in_16_bits


def test_layers_far_above_the_median_stay_in_16_bits() -> None:
    norms = [605.0, *([22.0] * 26), 921.0]
    assert kv_layers_kept_in_16_bits(norms) == {0, 27}


def test_like_layers_may_all_be_quantized() -> None:
    assert kv_layers_kept_in_16_bits([20.0, 25.0, 99.0]) == set()
    assert kv_layers_kept_in_16_bits([]) == set()
    assert kv_layers_kept_in_16_bits([0.0, 0.0]) == set()
