"""How to launch ``pool`` and what scores its vectors. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.pool.variants import (
    BLOCK,
    ELEMENTS,
    MOST_SCORED_COLUMNS,
    pool_variant,
    score_variant,
)
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Partials
    from zse.kernels.linear.weight import LinearWeight

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
        pool_variant(),
        (texts.count, -(-hidden // BLOCK), 1),
        stream_address,
        texts.first_rows,
        texts.num_rows,
        outputs_address,
        hidden,
        int(pooling == "first"),
        int(pooling == "last"),
    )


@record
class Scoring:
    """What makes scores of a dense layer's product."""

    is_tanh: bool
    """The activation of that: tanh, else gelu."""
    weight: LinearWeight
    """A row a score, in 16 bits."""
    bias: int
    """Address of float32 [rows of weight]."""
    dense_bias: int = 0
    """Address of float32 [columns of weight], added before the activation; 0 for none."""
    norm: int = 0
    """Address of float32 [columns of weight], of the norm behind the activation; 0 for none."""
    norm_bias: int = 0
    """Likewise."""
    is_layer_norm: bool = False
    epsilon: float = 0.0


def score_texts(launcher: Launcher, sums: Partials, scoring: Scoring, outputs_address: int) -> None:
    """Store the scores of each text.

    Args:
        sums: Summands of the dense layer's product, [texts, hidden].
        outputs_address: float32 [texts, rows of the weight].

    Raises:
        UnsupportedModelError: The rows are not in 16 bits, or too long.
    """
    weight = scoring.weight
    if weight.scheme not in ELEMENTS or sums.columns > MOST_SCORED_COLUMNS:
        raise UnsupportedModelError(
            f"scores by rows of {sums.columns} columns in {weight.scheme}; expected at most "
            f"{MOST_SCORED_COLUMNS} in one of {', '.join(ELEMENTS)}"
        )
    launcher.launch(
        score_variant(weight.scheme),
        (sums.rows, 1, 1),
        sums.values,
        scoring.dense_bias,
        scoring.norm,
        scoring.norm_bias,
        weight.weights,
        scoring.bias,
        outputs_address,
        sums.split_rows,
        sums.splits,
        int(scoring.dense_bias != 0),
        sums.columns,
        int(scoring.is_tanh),
        int(scoring.norm != 0),
        int(scoring.is_layer_norm),
        int(scoring.norm_bias != 0),
        weight.rows,
        scoring.epsilon,
    )
