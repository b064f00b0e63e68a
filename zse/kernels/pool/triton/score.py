"""The scores that a classifier makes of texts."""

from __future__ import annotations

import triton
import triton.language as tl

from zse.kernels.gate_up.triton.kernel import GELU, activated
from zse.kernels.triton.parts import GROUP, load_bias, sum_partials, wait_for_inputs


@triton.jit
def score_texts(
    sums, dense_bias, norm, norm_bias, weights, bias, outputs,
    rows, splits, has_dense_bias, hidden, is_tanh, has_norm, is_layer_norm, has_norm_bias, labels,
    epsilon,
    GROUPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store ``weights @ norm(activation(sums + dense_bias)) + bias`` of a text. Program: (text)."""
    wait_for_inputs(PDL)
    text = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = columns < hidden
    stride = rows.to(tl.int64) * hidden
    values = sum_partials(sums + text * hidden, columns, inside, splits, stride)
    values += load_bias(dense_bias, columns, inside, has_dense_bias)
    if is_tanh != 0:
        slope = tl.maximum(tl.minimum(2.0 * values, 80.0), -80.0)  # keeps the exponential finite
        values = 2.0 * tl.sigmoid(slope) - 1.0
    else:
        values = activated(values, GELU)
    values = tl.where(inside, values, 0.0)
    if has_norm != 0:
        if is_layer_norm != 0:
            values -= tl.sum(tl.sum(values, axis=1), axis=0) / hidden
            values = tl.where(inside, values, 0.0)
        mean = tl.sum(tl.sum(values * values, axis=1), axis=0) / hidden
        values = values * tl.rsqrt(mean + epsilon) * tl.load(norm + columns, mask=inside, other=0.0)
        values += load_bias(norm_bias, columns, inside, has_norm_bias)
    for label in range(labels):
        line = weights + label * hidden + columns
        products = values * tl.load(line, mask=inside, other=0.0).to(tl.float32)
        score = tl.sum(tl.sum(products, axis=1), axis=0) + tl.load(bias + label)
        tl.store(outputs + text * labels + label, score)
