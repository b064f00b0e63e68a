"""The kernel of joined rows equals its reference, in the interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.join.launch import JoinNorms, add_bent, join_rows
from zse.kernels.join.reference import TOLERANCE, bent, join
from zse.kernels.layout import Partials, Plain


@pytest.mark.parametrize(("rows", "hidden"), [(1, 16), (3, 128), (2, 1024), (2, 2064)])
def test_embeddings_and_states_stand_side_by_side_each_by_its_norm(rows: int, hidden: int) -> None:
    torch.manual_seed(hidden)
    stream, states = torch.randn(rows, hidden) * 3, torch.randn(rows, hidden)
    weights, epsilons = (torch.rand(hidden) + 0.5, torch.rand(hidden) - 2.0), (1e-6, 1e-2)
    expected = join(stream, states, weights, epsilons)
    output = torch.full((rows, 2 * hidden), float("nan"), dtype=torch.bfloat16)
    norms = JoinNorms(
        embedding=weights[0].data_ptr(),
        embedding_epsilon=epsilons[0],
        state=weights[1].data_ptr(),
        state_epsilon=epsilons[1],
    )
    place = Plain(rows=rows, columns=2 * hidden, values=output.data_ptr())
    join_rows(InterpretedLauncher(), stream.data_ptr(), states.data_ptr(), norms, place)
    error = (output.float() - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE
    assert not stream.any()


@pytest.mark.parametrize(("rows", "hidden", "splits"), [(1, 16, 1), (3, 272, 3), (2, 1024, 2)])
def test_what_is_bent_is_added_to_the_stream(rows: int, hidden: int, splits: int) -> None:
    torch.manual_seed(hidden)
    stream, bias = torch.randn(rows, hidden), torch.randn(hidden)
    parts = torch.randn(splits, rows, hidden) * 3
    expected = bent(stream, parts.sum(0), bias)
    product = Partials(rows=rows, columns=hidden, splits=splits, values=parts.data_ptr())
    add_bent(InterpretedLauncher(), stream.data_ptr(), product, bias.data_ptr())
    torch.testing.assert_close(stream, expected, rtol=1e-5, atol=1e-5)


def test_a_width_that_no_kernel_takes_is_refused() -> None:
    norms = JoinNorms(embedding=0, embedding_epsilon=0.0, state=0, state_epsilon=0.0)
    with pytest.raises(UnsupportedModelError, match="20 numbers"):
        join_rows(InterpretedLauncher(), 0, 0, norms, Plain(rows=1, columns=40, values=0))
    with pytest.raises(UnsupportedModelError, match="20 numbers"):
        add_bent(InterpretedLauncher(), 0, Partials(rows=1, columns=20, splits=1, values=0), 0)
