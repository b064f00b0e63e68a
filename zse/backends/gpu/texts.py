"""What encoders make of whole texts in place of tokens: vectors, or scores of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.products import Products
from zse.kernels.norm.launch import residual_norm
from zse.kernels.pool.launch import Scoring, TextRows, pool_rows, score_texts
from zse.records import record

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.weights import BoundNorm
    from zse.backends.handles import ClassifierWeights, EndWeights
    from zse.models.spec import ClassifierSpec, HeadSpec, Pooling


@record
class TextNumbers:
    """What a step makes of its texts: float32 [texts, columns]."""

    address: int
    columns: int


class TextOperations(Products):
    """What comes behind the layers of an encoder."""

    def write_numbers(
        self, step: Step, residual: Residual, ends: EndWeights, head: HeadSpec, pooling: Pooling
    ) -> TextNumbers:
        """Write the vector of each text, or the scores of a classifier."""
        vectors = self._write_vectors(step, residual, ends.final_norm, pooling)
        if head.classifier is None or ends.classifier is None:
            return TextNumbers(address=vectors, columns=self._hidden)
        return self._score(step, vectors, head.classifier, ends.classifier)

    def _score(
        self, step: Step, vectors: int, classifier: ClassifierSpec, weights: ClassifierWeights
    ) -> TextNumbers:
        """Write the scores of vectors over the 16-bit copies of these."""
        inputs = step.scratch.plain(step.shape.runs, self._hidden)
        residual_norm(step.launcher, vectors, inputs.rows, self._hidden, None, 0.0, inputs)
        sums = self._multiply(step, weights.dense.weight, inputs)
        norm = weights.norm
        scoring = Scoring(
            is_tanh=classifier.activation == "tanh",
            weight=weights.output.weight,
            bias=weights.output.bias,
            dense_bias=weights.dense.bias,
            norm=norm.weight if norm else 0,
            norm_bias=norm.bias if norm else 0,
            is_layer_norm=norm is not None and norm.is_layer_norm,
            epsilon=norm.epsilon if norm else 0.0,
        )
        score_texts(step.launcher, sums, scoring, inputs.values)
        return TextNumbers(address=inputs.values, columns=scoring.weight.rows)

    def _write_vectors(
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
