"""How to launch ``join``. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.join.variants import BENT_COLUMNS, bend_variant, join_variant
from zse.records import record

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Partials, Plain


@record
class JoinNorms:
    """Addresses of the weights of two RMSNorms, float32 [hidden]."""

    embedding: int
    embedding_epsilon: float
    state: int
    state_epsilon: float


def join_rows(
    launcher: Launcher, stream_address: int, states_address: int, norms: JoinNorms, output: Plain
) -> None:
    """Store the normed embedding of each token and behind it its normed state.

    Args:
        stream_address: float32 [rows, hidden] embeddings; zeros afterwards.
        states_address: float32 [rows, hidden].
        norms: Of either.
        output: Where bfloat16 [rows, 2 * hidden] go.

    Raises:
        UnsupportedModelError: The width is no multiple of 16.
    """
    hidden = output.columns // 2
    if hidden % 16:
        raise UnsupportedModelError(f"states of {hidden} numbers; expected a multiple of 16")
    launcher.launch(
        join_variant(),
        (output.rows, 2, 1),
        *(stream_address, states_address, norms.embedding, norms.state, output.values),
        *(hidden, norms.embedding_epsilon, norms.state_epsilon),
    )


def add_bent(launcher: Launcher, stream_address: int, product: Partials, bias_address: int) -> None:
    """Add silu(product + bias) to a stream.

    Args:
        stream_address: float32 [rows, columns of product]; changed in place.
        product: Summands of what is bent.
        bias_address: float32 [columns].

    Raises:
        UnsupportedModelError: The width is no multiple of 16.
    """
    hidden = product.columns
    if hidden % 16:
        raise UnsupportedModelError(f"states of {hidden} numbers; expected a multiple of 16")
    launcher.launch(
        bend_variant(),
        (product.rows, -(-hidden // BENT_COLUMNS), 1),
        *(stream_address, product.values, bias_address),
        *(product.split_rows, product.splits, hidden),
    )
