"""The operations as kernel launches; they run eagerly and under stream capture alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Deferred, Later, Pass, Projected, Query, Residual
from zse.backends.gpu.plans import BATCH_ROWS
from zse.kernels.attention.launch import attention_decode, attention_prefill
from zse.kernels.embed.launch import embed
from zse.kernels.gate_up.launch import activate
from zse.kernels.layout import ACTIVATION_GROUP, Activation, Partials, Plain
from zse.kernels.linear.launch import linear, linear_prefill
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.lm_head_sample.launch import sample
from zse.kernels.norm.launch import residual_norm
from zse.kernels.rope_store.launch import rope_store

if TYPE_CHECKING:
    from zse.backends.gpu.model import DeviceModel
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.lm_head_sample.arrays import SampledArrays


class GPUOperations:
    """See ``zse.backends.protocol.Operations``.

    Args:
        model: Where weights and tables are, and the numbers of the model.
        results: Where sampled tokens go.
    """

    def __init__(self, model: DeviceModel, results: SampledArrays) -> None:
        self._model = model
        self._results = results

    def embed(self, step: Pass, weight: str) -> Residual:  # noqa: ARG002
        """Write the residual stream, float32 [rows, hidden]."""
        embed(
            step.launcher,
            self._model.weights.embedding(),
            tokens_address=step.inputs.tokens,
            slots_address=step.inputs.slots,
            last_tokens_address=self._results.last_tokens,
            rows=step.shape.rows,
            hidden=self._model.spec.hidden_size,
            residual_address=step.scratch.residual,
        )
        return Residual(address=step.scratch.residual)

    def norm_linear(
        self, step: Pass, residual: Residual, norm: str, linear: str, bias: str | None = None
    ) -> Projected:
        """Leave the split sums of RMSNorm(residual) @ linear^T."""
        weights = self._model.weights
        inputs = self._normalized(step, residual, norm, weights.linear(linear))
        return Projected(
            sums=self._multiply(step, weights.linear(linear), inputs),
            bias=weights.vector(bias) if bias else 0,
        )

    def rope_store(
        self,
        step: Pass,
        qkv: Projected,
        layer: int,
        q_norm: str | None = None,
        k_norm: str | None = None,
    ) -> Query:
        """Rotate and store the prefill rows; attention does it for decode rows itself."""
        vector = self._model.weights.vector
        norms = (vector(q_norm), vector(k_norm)) if q_norm and k_norm else (0, 0)
        query = Query(projected=qkv, head_norms=norms)
        if step.shape.prefill_rows:
            rope_store(
                step.launcher,
                self._model.prefill_inputs(step, query),
                self._model.heads,
                step.cache.layers[layer],
                self._model.tables(step),
                table_rows_address=step.inputs.prefill_tables,
                queries_address=step.scratch.query,
            )
        return query

    def attention(self, step: Pass, query: Query, layer: int, window: int | None) -> Deferred:
        """Return attention, to be computed when its reader is known."""
        model = self._model

        def make(output: Activation) -> None:
            if rows := step.shape.decode_rows:
                attention_decode(
                    step.launcher,
                    model.decode_inputs(step, query),
                    model.heads,
                    step.cache.layers[layer],
                    model.tables(step),
                    model.decode_workspace(step),
                    output,
                    rules=model.rules(window),
                    splits=model.plans.decode_splits(rows),
                )
            if step.shape.prefill_rows:
                attention_prefill(
                    step.launcher,
                    step.scratch.query,
                    model.heads,
                    step.cache.layers[layer],
                    model.tables(step),
                    model.tiles(step),
                    step.scratch.plain(
                        step.shape.prefill_rows, model.query_columns, first_row=rows
                    ).values,
                    rules=model.rules(window),
                )

        return Later(
            columns=model.query_columns,
            can_quantize=not step.shape.prefill_rows and model.attention_can_be_quantized,
            make=make,
        )

    def linear_residual(
        self, step: Pass, inputs: Deferred, linear: str, residual: Residual
    ) -> Residual:
        """Leave the split sums of inputs @ linear^T for the next norm to add."""
        weight = self._model.weights.linear(linear)
        output = self._form(step, weight, step.shape.rows, can_quantize=inputs.can_quantize)
        inputs.write(output)
        return Residual(address=residual.address, pending=self._multiply(step, weight, output))

    def gate_up(self, step: Pass, residual: Residual, norm: str, linear: str) -> Deferred:
        """Return silu(gate) * up, to be computed when its reader is known."""
        weight = self._model.weights.linear(linear)
        inputs = self._normalized(step, residual, norm, weight)
        joined: Plain | Partials
        if isinstance(inputs, Plain) and inputs.rows > BATCH_ROWS:
            joined = Plain(rows=inputs.rows, columns=weight.rows, values=step.scratch.sums)
            self._multiply_widened(step, weight, inputs, joined.values, "bf16")
        else:
            joined = self._multiply(step, weight, inputs)
        columns = weight.rows // 2
        return Later(
            columns=columns,
            can_quantize=columns % ACTIVATION_GROUP == 0,
            make=lambda output: activate(step.launcher, joined, output),
        )

    def write_logits(self, step: Pass, residual: Residual, norm: str, linear: str) -> None:
        """Write float32 logits of the wanted rows, [wanted, vocab]."""
        weights, spec = self._model.weights, self._model.spec
        weight = weights.linear(linear)
        wanted = step.shape.wanted
        output = self._form(step, weight, wanted, can_quantize=True)
        residual_norm(
            step.launcher,
            residual.address,
            wanted,
            spec.hidden_size,
            weights.vector(norm),
            spec.head.norm.epsilon,
            output,
            added=residual.take_pending(),
            row_index_address=step.inputs.wanted,
        )
        self._multiply_into(step, weight, output, step.scratch.logits)

    def lm_head_sample(self, step: Pass, residual: Residual, norm: str, linear: str) -> None:
        """Choose a token for each wanted row."""
        if not step.shape.wanted:
            return
        self.write_logits(step, residual, norm, linear)
        sample(
            step.launcher,
            step.scratch.logits,
            rows=step.shape.wanted,
            vocab=self._model.spec.vocab_size,
            arrays=step.inputs.sampling,
            kind=step.sampling,
            num_adjustments=step.shape.entries,
            workspace_address=step.scratch.sampling,
            outputs=self._results,
        )

    # --- pieces --------------------------------------------------------------------------------

    def _form(
        self, step: Pass, weight: LinearWeight, rows: int, *, can_quantize: bool
    ) -> Activation:
        """Return where a matrix's inputs are to be written, in the form that it reads best."""
        quantized = step.quantized and can_quantize and supports_quantized(weight)
        make = step.scratch.quantized if quantized else step.scratch.plain
        return make(rows, weight.columns)

    def _normalized(
        self, step: Pass, residual: Residual, norm: str, weight: LinearWeight
    ) -> Activation:
        spec = self._model.spec
        output = self._form(step, weight, step.shape.rows, can_quantize=True)
        residual_norm(
            step.launcher,
            residual.address,
            step.shape.rows,
            spec.hidden_size,
            self._model.weights.vector(norm),
            spec.head.norm.epsilon,
            output,
            added=residual.take_pending(),
        )
        return output

    def _multiply(self, step: Pass, weight: LinearWeight, inputs: Activation) -> Partials:
        if isinstance(inputs, Plain) and inputs.rows > BATCH_ROWS:
            self._multiply_widened(step, weight, inputs, step.scratch.sums, "fp32")
            return Partials(
                rows=inputs.rows, columns=weight.rows, splits=1, values=step.scratch.sums
            )
        plan = self._model.plans.plan(weight, inputs.rows, quantized=not isinstance(inputs, Plain))
        return linear(step.launcher, weight, inputs, step.scratch.sums, plan)

    def _multiply_into(
        self, step: Pass, weight: LinearWeight, inputs: Activation, address: int
    ) -> None:
        """Write the whole product, float32 [rows, rows of weight], to ``address``."""
        if isinstance(inputs, Plain) and inputs.rows > BATCH_ROWS:
            self._multiply_widened(step, weight, inputs, address, "fp32")
            return
        quantized = not isinstance(inputs, Plain)
        plan = self._model.plans.plan(weight, inputs.rows, quantized=quantized, max_splits=1)
        linear(step.launcher, weight, inputs, address, plan)

    def _multiply_widened(
        self, step: Pass, weight: LinearWeight, inputs: Plain, address: int, element: str
    ) -> None:
        linear_prefill(
            step.launcher,
            weight,
            inputs,
            address,
            element,
            scratch_address=step.scratch.weights,
            scratch_bytes=step.scratch.weights_bytes,
        )
