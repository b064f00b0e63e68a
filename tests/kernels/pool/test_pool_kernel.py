"""The vector of each text is the reference's."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.layout import Partials
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.pool.launch import (
    POOLINGS,
    Scoring,
    TextRows,
    pool_rows,
    score_texts,
)
from zse.kernels.pool.reference import pool

HIDDEN = 272


@pytest.mark.parametrize("pooling", POOLINGS)
def test_texts_have_the_vectors_of_the_reference(pooling: str) -> None:
    torch.manual_seed(3)
    lengths = [5, 1, 7]
    states = torch.randn(sum(lengths), HIDDEN)
    first_rows = torch.tensor([0, 5, 6], dtype=torch.int32)
    num_rows = torch.tensor(lengths, dtype=torch.int32)
    found = torch.full((len(lengths), HIDDEN), -5.0)
    texts = TextRows(
        count=len(lengths), first_rows=first_rows.data_ptr(), num_rows=num_rows.data_ptr()
    )
    pool_rows(
        InterpretedLauncher(), states.data_ptr(), texts, found.data_ptr(), hidden=HIDDEN,
        pooling=pooling,
    )  # fmt: skip
    torch.testing.assert_close(found, pool(states, lengths, pooling), rtol=1e-5, atol=1e-6)


def test_a_pooling_that_is_none_is_refused() -> None:
    texts = TextRows(count=1, first_rows=0, num_rows=0)
    with pytest.raises(UnsupportedModelError, match="pooling 'most'"):
        pool_rows(InterpretedLauncher(), 0, texts, 0, hidden=128, pooling="most")


@pytest.mark.parametrize("norm", ["none", "rms", "layer"])
@pytest.mark.parametrize(("is_tanh", "scheme"), [(True, "bf16"), (False, "fp16")])
def test_texts_have_the_scores_that_torch_makes_of_them(
    norm: str, is_tanh: bool, scheme: str
) -> None:
    torch.manual_seed(4)
    parts, dense_bias = torch.randn(3, 7, HIDDEN), torch.randn(HIDDEN)
    weight, norm_bias = torch.randn(HIDDEN), torch.randn(HIDDEN)
    rows = torch.randn(2, HIDDEN).to({"bf16": torch.bfloat16, "fp16": torch.float16}[scheme])
    bias, found = torch.randn(2), torch.full((4, 2), -5.0)
    joined = Partials(rows=7, columns=HIDDEN, splits=3, values=parts.data_ptr()).part(2, 4)
    scoring = Scoring(
        is_tanh=is_tanh,
        weight=LinearWeight(scheme=scheme, rows=2, columns=HIDDEN, weights=rows.data_ptr()),
        bias=bias.data_ptr(),
        dense_bias=dense_bias.data_ptr(),
        norm=weight.data_ptr() if norm != "none" else 0,
        norm_bias=norm_bias.data_ptr() if norm == "layer" else 0,
        is_layer_norm=norm == "layer",
        epsilon=1e-5,
    )
    score_texts(InterpretedLauncher(), joined, scoring, found.data_ptr())
    values = parts.sum(0)[2:6] + dense_bias
    values = torch.tanh(values) if is_tanh else torch.nn.functional.gelu(values)
    if norm == "layer":
        values = torch.nn.functional.layer_norm(values, (HIDDEN,), weight, norm_bias, 1e-5)
    elif norm == "rms":
        values = torch.nn.functional.rms_norm(values, (HIDDEN,), weight, 1e-5)
    torch.testing.assert_close(found, values @ rows.float().T + bias, rtol=1e-4, atol=1e-4)


def test_rows_of_a_classifier_that_no_kernel_reads_are_refused() -> None:
    weight = LinearWeight(scheme="int8", rows=1, columns=128, weights=0)
    joined = Partials(rows=1, columns=128, splits=1, values=0)
    with pytest.raises(UnsupportedModelError, match="columns in int8"):
        score_texts(InterpretedLauncher(), joined, Scoring(is_tanh=True, weight=weight, bias=0), 0)
