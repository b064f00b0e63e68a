"""The vector of each text is the reference's."""

from __future__ import annotations

import pytest
import torch
from interpreted import InterpretedLauncher

from zse.errors import UnsupportedModelError
from zse.kernels.pool.launch import POOLINGS, TextRows, pool_rows
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
