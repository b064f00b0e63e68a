"""The operations as kernel launches; they run eagerly and under stream capture alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Deferred, Projected, Query, Residual, Step, Told
from zse.backends.gpu.gating import Gating
from zse.backends.gpu.graphs import SampledRehearsal
from zse.backends.gpu.kinds import expert_operations_of, latent_operations_of
from zse.backends.gpu.repeating import RepeatingLauncher
from zse.kernels.attention.context import attention_over_context, gather_context
from zse.kernels.attention.launch import attention_decode, attention_prefill, output_gate
from zse.kernels.attention.wide import attention_decode_wide, takes_wide
from zse.kernels.embed.launch import embed
from zse.kernels.join.launch import join_rows
from zse.kernels.layout import Activation, Partials, Plain, Quantized, Turned
from zse.kernels.norm.launch import PostNorm, heads_norm, residual_norm
from zse.kernels.rope_store.launch import rope_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from zse.backends.gpu.forward import Added, WideQueries
    from zse.backends.gpu.given_states import BoundJoin
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.weights import BoundEmbedding, BoundLinear, BoundNorm
    from zse.backends.handles import (
        ExpertWeights,
        LayerInputsWeights,
        LayerWeights,
    )
    from zse.kernels.embed.launch import EmbedTable, Placing
    from zse.kernels.layout import HeadShape
    from zse.kernels.lm_head_sample.arrays import SampledArrays
    from zse.models.layer_spec import (
        AttentionSpec,
        ExpertsSpec,
        LayerSpec,
        LinearAttentionSpec,
    )
    from zse.models.spec import LayerInputsSpec


class GPUOperations(Gating):
    """See ``zse.backends.operations.Operations``; sampled tokens go to ``results``."""

    def __init__(self, model: DeviceModel, results: SampledArrays) -> None:
        super().__init__(model, results)
        self._layers = model.layers
        self._experts = expert_operations_of(model)
        self._latents = latent_operations_of(model)

    def is_computed(self, step: Step) -> bool:
        launcher = step.launcher
        if isinstance(launcher, RepeatingLauncher | SampledRehearsal):
            return launcher.begin_layer()
        return False

    def layer(self, layer: LayerSpec) -> AbstractContextManager[LayerWeights]:
        return self._layers[layer.index]

    def embed(self, step: Step, embedding: BoundEmbedding, scale: float) -> Residual:
        """Write the residual stream, float32 [rows, hidden]."""
        self._model.passes.before_layers()
        placing = embedding.placing
        if placing is not None:
            placing = replace(
                placing,
                decode_rows=step.shape.decode_rows,
                positions=step.inputs.positions,
                prefill_positions=step.inputs.prefill_positions,
                types=step.inputs.types if step.shape.typed_rows else 0,
            )
        residual = step.scratch.residual
        self._gather(step, embedding.table, self._hidden, residual, scale, placing)
        if (join := self._model.join) is not None:
            return self._with_states(step, residual, join)
        return Residual(address=residual, norm=embedding.norm)

    def _with_states(self, step: Step, stream: int, join: BoundJoin) -> Residual:
        """Return an empty stream, to which the join of embeddings and states is to be added."""
        both = step.scratch.plain(step.shape.rows, 2 * self._hidden)
        join_rows(step.launcher, stream, step.scratch.given, join.norms, both)
        sums = self._multiply(step, join.linear.weight, both, exact=True)
        return Residual(address=stream, pending=sums, bias=join.linear.bias)

    def enter_stream(self, step: Step) -> Residual:
        """Return the stream, which has come from the stage before to where this one keeps it."""
        return Residual(address=step.scratch.residual)

    def leave_stream(self, step: Step, residual: Residual) -> None:
        """Add what is pending, so that all of the stream is where the next stage's rows go from."""
        unread = step.scratch.plain(step.shape.rows, self._hidden)
        self._norm(step, residual, None, unread)

    def layer_inputs(
        self,
        step: Step,
        residual: Residual,
        weights: LayerInputsWeights,
        inputs: LayerInputsSpec,
    ) -> Told:
        """Write the tokens' rows, then add the projection, a layer's columns as a row each."""
        weight, told = weights.projection.weight, step.scratch.told
        stream = self._normalized(step, residual, None, weight)
        sums = self._multiply(step, weight, stream, exact=True)
        self._gather(step, weights.table, weight.rows, told, inputs.scale)
        layers, rows = weight.rows // inputs.width, step.shape.rows
        residual_norm(
            step.launcher,
            told,
            rows * layers,
            inputs.width,
            None,
            0.0,
            step.scratch.plain(rows * layers, inputs.width),  # which nobody reads
            added=Partials(
                rows=rows * layers,
                columns=inputs.width,
                splits=sums.splits,
                values=sums.values,
                whole_rows=sums.split_rows * layers,
            ),
            post=PostNorm(address=weights.norm.weight, epsilon=weights.norm.epsilon),
        )
        return Told(address=told, columns=weight.rows)

    def norm_linear(
        self, step: Step, residual: Residual, norm: BoundNorm | None, linear: BoundLinear
    ) -> Projected:
        """Leave the split sums of norm(residual) @ linear^T, and the bias that is to be added."""
        inputs = self._entered(step, residual, norm, linear.weight)
        return Projected(sums=self._product(step, linear, inputs), bias=linear.bias)

    def rope_store(
        self,
        step: Step,
        qkv: Projected,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Query | WideQueries:
        """Rotate and store the prefill rows; attention does it for decode rows itself."""
        if attention.latent is not None:
            assert self._latents is not None
            return self._latents.store(step, qkv, attention, weights, layer)
        # Without keys of its own a layer norms queries alone; the kernel looks at no other norm.
        norms = weights.q_norm and (weights.q_norm, weights.k_norm or weights.q_norm)
        own = self._model.attentions[layer]
        if norms and own.norms_all_heads:
            qkv, norms = self._norm_all_heads(step, qkv, norms, own.kind.shape), None
        query = Query(projected=qkv, layer=layer, head_norms=norms)
        if step.shape.prefill_rows:
            rope_store(
                step.launcher,
                self._model.head_inputs(step, query, prefill=True),
                own.kind.shape,
                step.cache.layers[layer],
                self._model.tables(step, layer),
                table_rows_address=step.inputs.prefill_tables,
                queries_address=step.scratch.query,
            )
        return query

    def attention(
        self,
        step: Step,
        query: Query | WideQueries,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Deferred:
        """Return attention, to be computed when its reader is known."""
        if not isinstance(query, Query):
            assert self._latents is not None
            return self._latents.attention(step, query, attention, weights, layer)
        model, own = self._model, self._model.attentions[layer]
        shape = own.kind.shape

        def make(output: Activation) -> None:
            rows = step.shape.decode_rows
            if rows:
                self._attend_singly(step, query, output)
            if step.shape.prefill_rows:
                prefill = step.scratch.plain(
                    step.shape.prefill_rows, shape.query_columns, first_row=rows
                ).values
                self._attend_together(step, layer, prefill)
                if shape.is_gated:
                    inputs = model.head_inputs(step, query, prefill=True)
                    output_gate(step.launcher, inputs, shape, prefill)

        return Deferred(
            columns=shape.query_columns,
            can_quantize=not step.shape.prefill_rows and own.can_quantize,
            write=make,
        )

    def delta(
        self,
        step: Step,
        residual: Residual,
        weights: LayerWeights,
        delta: LinearAttentionSpec,  # noqa: ARG002 - the model has its numbers
        layer: int,
    ) -> Deferred:
        """Return linear attention, to be computed when its reader is known."""
        parts, linear_attention = weights.delta, self._model.plans.linear_attention
        assert parts is not None
        assert linear_attention is not None
        inputs = self._normalized(step, residual, weights.mixer_norm, parts.inputs.weight)
        projected = self._product(step, parts.inputs, inputs)
        if not isinstance(inputs, Plain):  # 8 bits are too few for what steers a state
            inputs = step.scratch.plain(inputs.rows, inputs.columns)
            self._norm(step, residual, weights.mixer_norm, inputs)
        gates = self._multiply(step, parts.gates.weight, inputs, step.scratch.gates, exact=True)

        def make(output: Activation) -> None:
            linear_attention.mix(step, (projected, gates), parts, layer, output)

        return Deferred(
            columns=linear_attention.columns(layer),
            can_quantize=not step.shape.prefill_rows and linear_attention.can_quantize(layer),
            write=make,
        )

    def experts(
        self, step: Step, residual: Residual, weights: ExpertWeights, experts: ExpertsSpec
    ) -> Added:
        assert self._experts is not None
        return self._experts.experts(step, residual, weights, experts)

    def dense(
        self, step: Step, inputs: Deferred, linear: BoundLinear, post_norm: BoundNorm | None
    ) -> Added:
        assert self._experts is not None
        return self._experts.dense(step, inputs, linear, post_norm)

    def add(
        self,
        step: Step,
        residual: Residual,
        added: Sequence[Added],
        scale: float,
        post_norm: BoundNorm | None,
    ) -> Residual:
        assert self._experts is not None
        return self._experts.add(step, residual, added, scale, post_norm)

    def linear_residual(
        self,
        step: Step,
        inputs: Deferred,
        linear: BoundLinear,
        residual: Residual,
        scale: float,
        post_norm: BoundNorm | None,
    ) -> Residual:
        """Leave the split sums of inputs @ linear^T for the next norm to add."""
        output: Activation | Turned
        if inputs.write_turned is not None and self._turns(step, linear.weight):
            output = step.scratch.turned(step.shape.rows, linear.weight.columns)
            inputs.write_turned(output)
        else:
            output = self._form(
                step, linear.weight, step.shape.rows, can_quantize=inputs.can_quantize
            )
            inputs.write(output)
        norm = step.norms_behind.get(linear.name)
        if norm is not None and isinstance(output, Quantized):  # attention may leave 16 bits
            return self._begin_norm(step, linear.weight, output, residual, norm)
        return Residual(
            address=residual.address,
            pending=self._product(step, linear, output),
            bias=linear.bias,
            scale=scale,
            post=post_norm and PostNorm(address=post_norm.weight, epsilon=post_norm.epsilon),
            is_share=self._model.collectives is not None,
        )

    def scale_stream(self, _step: Step, residual: Residual, factor: int) -> Residual:
        """Leave the factor for the next norm, which applies it after what is pending."""
        residual.post = replace(residual.post or PostNorm(), stream_scale_address=factor)
        return residual

    def norm_stream(self, _step: Step, residual: Residual, norm: BoundNorm) -> Residual:
        """Leave the norm for whoever reads the stream next, who adds what is pending before it."""
        residual.norm = norm
        return residual

    # --- pieces --------------------------------------------------------------------------------

    def _attend_singly(self, step: Step, query: Query, output: Activation) -> None:
        """Store the key and value of each single row and attend with it."""
        model, own = self._model, self._model.attentions[query.layer]
        shape, rules, launcher = own.kind.shape, own.rules, step.launcher
        inputs, tables = model.head_inputs(step, query), model.tables(step, query.layer)
        cache = step.cache.layers[query.layer]
        splits = model.plans.decode_splits(step.shape.decode_rows, own.kind)
        target = launcher.device.target
        if takes_wide(inputs, shape, cache, rules, target=target, splits=splits):
            workspace = model.wide_workspace(step)
            attention_decode_wide(
                launcher, inputs, shape, cache, tables, workspace, output,
                rules=rules, splits=splits,
            )  # fmt: skip
            return
        writes_alone = shape.stores and not step.shape.prefill_rows
        passes = [(rules, splits, writes_alone and not step.shape.rows_follow)]
        if step.shape.rows_follow and shape.stores:
            # The same kernel, seeing nothing but the row itself: every key and value is in its
            # place, with the bits that it has alone, before another row looks for it.
            passes.insert(0, (replace(rules, window=1), 1, writes_alone))
        for seen, programs, early in passes:
            attention_decode(
                launcher, inputs, shape, cache, tables, model.decode_workspace(step), output,
                rules=seen, splits=programs, early=early,
            )  # fmt: skip

    def _attend_together(self, step: Step, layer: int, output_address: int) -> None:
        """Attend with the rows of prompts, over the paged cache or over lines of it."""
        model, own = self._model, self._model.attentions[layer]
        shape, cache = own.kind.shape, step.cache.layers[layer]
        launcher, queries = step.launcher, step.scratch.query
        if (context := model.context(step, layer)) is not None:
            gather_context(launcher, shape, cache, context)
            tiles, scale = model.context_tiles(step), own.rules.scale
            attention_over_context(
                launcher, queries, shape, context, tiles, output_address, scale=scale
            )
            return
        tables, tiles = model.tables(step, layer), model.tiles(step)
        attention_prefill(
            launcher, queries, shape, cache, tables, tiles, output_address, rules=own.rules
        )

    def _gather(
        self,
        step: Step,
        table: EmbedTable,
        columns: int,
        address: int,
        scale: float,
        placing: Placing | None = None,
    ) -> None:
        """Write the rows of a table that the step's tokens name, float32 [rows, columns]."""
        embed(
            step.launcher,
            table,
            tokens_address=step.inputs.tokens,
            slots_address=step.inputs.slots,
            last_tokens_address=self._results.last_tokens,
            rows=step.shape.rows,
            hidden=columns,
            residual_address=address,
            scale=scale,
            placing=placing,
        )

    def _norm_all_heads(
        self, step: Step, qkv: Projected, norms: tuple[BoundNorm, BoundNorm], shape: HeadShape
    ) -> Projected:
        """Leave whole rows of the product, whose norms are taken and whose bias is added."""
        whole = heads_norm(
            step.launcher,
            qkv.sums,
            shape,
            q_norm_address=norms[0].weight,
            k_norm_address=norms[1].weight,
            epsilon=norms[0].epsilon,
            bias_address=qkv.bias,
        )
        return Projected(sums=whole, bias=0)
