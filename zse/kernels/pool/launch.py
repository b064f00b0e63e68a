"""How to launch ``pool``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.pool.variants import BLOCK, VARIANTS
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher

POOLINGS = ("mean", "first", "last")


@record
class TextRows:
    """Which rows each text has."""

    count: int
    first_rows: int
    """Address of int32 [count]."""
    num_rows: int
    """Address of int32 [count], each at least 1."""


def pool_rows(
    launcher: Launcher,
    stream_address: int,
    texts: TextRows,
    outputs_address: int,
    *,
    hidden: int,
    pooling: str,
) -> None:
    """Store the vector of each text.

    Args:
        stream_address: float32 [rows, hidden].
        outputs_address: float32 [texts, hidden].
        hidden: A multiple of 16.
        pooling: One of ``POOLINGS``.

    Raises:
        UnsupportedModelError: The pooling is none of these, or no kernel takes this row length.
    """
    if pooling not in POOLINGS or hidden % 16:
        raise UnsupportedModelError(
            f"pooling {pooling!r} of {hidden} columns; expected one of {', '.join(POOLINGS)} and "
            "a multiple of 16"
        )
    launcher.launch(
        VARIANTS[0],
        (texts.count, -(-hidden // BLOCK), 1),
        stream_address,
        texts.first_rows,
        texts.num_rows,
        outputs_address,
        hidden,
        int(pooling == "first"),
        int(pooling == "last"),
    )
