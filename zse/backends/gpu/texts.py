"""The vectors of whole texts, which encoders make in place of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.products import Products
from zse.kernels.pool.launch import TextRows, pool_rows

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.weights import BoundNorm
    from zse.models.spec import Pooling


class TextOperations(Products):
    """What comes behind the layers of an encoder."""

    def write_vectors(
        self, step: Step, residual: Residual, norm: BoundNorm | None, pooling: Pooling
    ) -> int:
        """Write the vector of each text, float32 [texts, hidden], from normed rows.

        Returns:
            Its address: where the sums of a step go, which nobody reads any more.
        """
        rows = step.scratch.plain(step.shape.rows, self._hidden)
        if residual.norm is not None or norm is None:
            self._norm(step, residual, None, rows)
        if norm is not None:
            residual.norm = norm
            self._norm(step, residual, None, rows)
        inputs, vectors = step.inputs, step.scratch.sums
        texts = TextRows(
            count=step.shape.runs, first_rows=inputs.run_first_rows, num_rows=inputs.run_num_rows
        )
        pool_rows(
            step.launcher, residual.address, texts, vectors, hidden=self._hidden, pooling=pooling
        )
        return vectors
