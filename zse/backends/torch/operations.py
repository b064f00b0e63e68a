"""The operations in torch, float32 arithmetic throughout."""

from __future__ import annotations

import contextlib
import functools
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from zse.backends.binding import bind_classifier, bind_layer
from zse.backends.handles import EndWeights, LayerWeights, MedusaWeights
from zse.backends.key_factors import key_factors
from zse.backends.kv_dtypes import dtypes_of, is_narrow
from zse.backends.operations import is_attention, kept_by, refuse
from zse.backends.torch.activation import activate_rows, activated
from zse.backends.torch.adapters import adapted_product
from zse.backends.torch.attention import attend
from zse.backends.torch.delta import mix_chunks
from zse.backends.torch.experts import add_experts
from zse.backends.torch.kept import turned
from zse.backends.torch.latent import absorb_keys, expand_values
from zse.backends.torch.rotary import RotaryTable, rotate
from zse.backends.torch.sampling import sample
from zse.backends.types import accepted, mask_bytes
from zse.kernels.delta.shape import DeltaShape
from zse.kernels.pool.reference import pool

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Sequence

    from zse.backends.handles import ExpertWeights, LayerInputsWeights, LayerInputWeights
    from zse.backends.torch.linear import Linear
    from zse.backends.torch.step import Step
    from zse.backends.torch.weights import BoundLinear, BoundNorm, BoundWeights
    from zse.backends.types import Answers, SampledToken, StepBatch
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.models.layer_spec import (
        AttentionSpec,
        ExpertsSpec,
        LayerInputSpec,
        LayerSpec,
        LinearAttentionSpec,
        MLPSpec,
    )
    from zse.models.spec import HeadSpec, LayerInputsSpec, ModelSpec, Pooling


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that is not computed here, with an ``UnsupportedModelError``."""
    refuse("the torch backend", _obstacles(spec))


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for layer in spec.layers:
        if is_attention(layer.mixer) and layer.mixer.is_causal == spec.is_encoder:
            yield f"layer {layer.index}", "attention that does not fit its head"
    if spec.is_encoder == (spec.head.pooling == "none"):
        yield "the head", f"{spec.head.pooling} of its states to pool"


class Query(NamedTuple):
    """Queries on their way from the rotation to the attention."""

    rotated: torch.Tensor
    """float32 [tokens, heads, head_dim]."""
    gate: torch.Tensor | None
    """float32 [tokens, heads * head_dim], before the sigmoid."""


class TorchOperations:
    """See ``zse.backends.operations.Operations``; the model has been checked."""

    def __init__(self, weights: BoundWeights, spec: ModelSpec, *, kv_dtype: str = "fp32") -> None:
        self.ends = EndWeights(
            embedding=weights.embedding,
            layer_inputs=weights.layer_inputs(spec),
            final_norm=None if spec.head.norm is None else weights.norm(spec.head.norm),
            head=weights.head(spec),
            classifier=bind_classifier(spec.head.classifier, weights),
            medusa=tuple(
                MedusaWeights(
                    blocks=tuple(map(weights.linear, head.blocks)),
                    matrix=weights.linear_of(head.matrix),
                )
                for head in spec.medusa
            ),
        )
        self._classifier = spec.head.classifier
        self._scopes = [contextlib.nullcontext(bind_layer(layer, weights)) for layer in spec.layers]
        mixers = [layer.mixer for layer in spec.layers]
        ropes = {mixer.rope for mixer in mixers if is_attention(mixer)}
        self._rotary = {rope: RotaryTable(rope) for rope in ropes if rope is not None}
        factors = _key_factors(weights, spec) if is_narrow(kv_dtype) else {}
        self._key_factors = {
            layer: torch.tensor(values).view(-1, heads_of(spec, layer).head_dim)
            for layer, values in factors.items()
        }
        self.kv_dtypes = dtypes_of(spec, kv_dtype, factors)
        """Type of what each layer keeps of keys and values, by its number."""

    def drop(self) -> None:
        self._scopes.clear()
        self.ends = EndWeights(embedding=None, final_norm=None, head=None)

    def turn(self, step: Step) -> None:
        """Look up the angles of a step's positions."""
        end = max(chunk.start_position + chunk.num_tokens for chunk in step.chunks)
        step.rotary = {
            rope: table.rows(step.positions, end) for rope, table in self._rotary.items()
        }

    def is_computed(self, _step: Step) -> bool:
        return False

    def layer(self, layer: LayerSpec) -> contextlib.AbstractContextManager[LayerWeights]:
        return self._scopes[layer.index]

    def embed(
        self, step: Step, embedding: Callable[..., torch.Tensor], scale: float
    ) -> torch.Tensor:
        return embedding(step, scale)

    def layer_inputs(
        self,
        step: Step,
        residual: torch.Tensor,
        weights: LayerInputsWeights,
        inputs: LayerInputsSpec,
    ) -> torch.Tensor:
        projected = weights.projection.multiply(residual, step.single_rows)
        normed = weights.norm(projected.view(residual.shape[0], -1, inputs.width))
        return normed.flatten(1).add_(weights.table(step.token_ids), alpha=inputs.scale)

    def norm_linear(
        self, step: Step, residual: torch.Tensor, norm: BoundNorm | None, linear: BoundLinear
    ) -> torch.Tensor:
        return adapted_product(step, linear, _normed(residual, norm))

    def rope_store(
        self,
        step: Step,
        qkv: torch.Tensor,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Query:
        if attention.latent is not None:
            return Query(absorb_keys(step, qkv, attention, weights, layer), None)
        rows, dim = qkv.shape[0], attention.head_dim
        query, gate, keys, values = _split(qkv, attention)
        rotary = step.rotary.get(attention.rope) if attention.rope is not None else None
        heads = _head_norm(query, weights.q_norm, dim)
        rotated = heads if rotary is None else rotate(heads, *rotary)
        if (factors := self._key_factors.get(layer)) is not None:
            repeats = attention.num_heads // attention.num_kv_heads
            rotated = rotated * factors.repeat_interleave(repeats, 0)
        turns = self.kv_dtypes.get(kept_by(attention, layer)) == "int4"
        if turns:
            rotated = turned(rotated)
        if keys is not None:
            stored = _head_norm(keys, weights.k_norm, dim)
            if rotary is not None:
                stored = rotate(stored, *rotary)
            if factors is not None:
                stored = stored / factors
            if turns:
                stored = turned(stored)
            values = values.reshape(rows, -1, dim)
            if attention.value_norm_epsilon is not None:
                values = functional.rms_norm(values, (dim,), eps=attention.value_norm_epsilon)
            step.keep(layer, torch.cat((stored, values), 1))
        return Query(rotated, gate)

    def attention(
        self,
        step: Step,
        query: Query,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> torch.Tensor:
        attended = attend(step, query.rotated.contiguous(), attention, weights.sinks, layer)
        if attention.latent is not None:
            attended = expand_values(step, attended, attention, weights)
        return attended if query.gate is None else attended.mul_(torch.sigmoid(query.gate))

    def delta(
        self,
        step: Step,
        residual: torch.Tensor,
        weights: LayerWeights,
        delta: LinearAttentionSpec,
        layer: int,
    ) -> torch.Tensor:
        parts = weights.delta
        assert parts is not None
        inputs = _normed(residual, weights.mixer_norm)
        projected = adapted_product(step, parts.inputs, inputs)
        gates = parts.gates.multiply(inputs, step.single_rows)
        states = step.states.layers[layer]
        return mix_chunks(projected, gates, parts, DeltaShape.of(delta), states, step.chunks)

    def linear_residual(
        self,
        step: Step,
        inputs: torch.Tensor,
        linear: BoundLinear,
        residual: torch.Tensor,
        scale: float,
        post_norm: BoundNorm | None,
    ) -> torch.Tensor:
        """Return residual + scale * post_norm(inputs @ linear^T + bias), in ``residual``."""
        added = adapted_product(step, linear, inputs)
        if post_norm is not None:
            added = post_norm(added)
        return residual.add_(added if scale == 1.0 else added.mul_(scale))

    def gate_up(
        self,
        step: Step,
        residual: torch.Tensor,
        norm: BoundNorm | None,
        linear: BoundLinear,
        mlp: MLPSpec,
    ) -> torch.Tensor:
        joined = adapted_product(step, linear, _normed(residual, norm))
        return activate_rows(joined, mlp, step.single_rows)

    def experts(
        self, step: Step, residual: torch.Tensor, weights: ExpertWeights, experts: ExpertsSpec
    ) -> torch.Tensor:
        return add_experts(step, residual, weights, experts)

    def dense(
        self, step: Step, inputs: torch.Tensor, linear: BoundLinear, post_norm: BoundNorm | None
    ) -> torch.Tensor:
        return _normed(adapted_product(step, linear, inputs), post_norm)

    def add(
        self,
        _step: Step,
        residual: torch.Tensor,
        added: Sequence[torch.Tensor],
        scale: float,
        post_norm: BoundNorm | None,
    ) -> torch.Tensor:
        """Return residual + scale * post_norm(sum of added), in ``residual``."""
        total = functools.reduce(torch.Tensor.add_, added)
        return residual.add_(_normed(total, post_norm), alpha=scale)

    def gate_input(
        self,
        step: Step,
        residual: torch.Tensor,
        told: torch.Tensor,
        weights: LayerInputWeights,
        own: LayerInputSpec,
        layer: int,
    ) -> torch.Tensor:
        gate = weights.gate.multiply(residual, step.single_rows)
        first = layer * gate.shape[1]
        gated = activated(gate, own.activation, step.single_rows)
        return gated.mul_(told[:, first : first + gate.shape[1]])

    def scale_stream(
        self, _step: Step, residual: torch.Tensor, factor: torch.Tensor
    ) -> torch.Tensor:
        return residual.mul_(factor)

    def norm_stream(self, _step: Step, residual: torch.Tensor, norm: BoundNorm) -> torch.Tensor:
        return norm(residual)

    def pool(self, step: Step, residual: torch.Tensor, pooling: Pooling) -> list[list[float]]:
        """Return the vector of each chunk; its rows stand together, in the order of the batch."""
        states = _normed(residual, self.ends.final_norm)
        lengths = [chunk.num_tokens for chunk in step.chunks]
        return self._scored(pool(states, lengths, pooling)).tolist()

    def _scored(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return a classifier's scores of vectors; the vectors themselves where there is none."""
        classifier, weights = self._classifier, self.ends.classifier
        if classifier is None or weights is None:
            return pooled
        bend = torch.tanh if classifier.activation == "tanh" else functional.gelu
        bent = bend(weights.dense.multiply(pooled, 0))
        return weights.output.multiply(_normed(bent, weights.norm), 0)

    def lm_head(self, step: Step, residual: torch.Tensor, head: HeadSpec) -> torch.Tensor:
        rows = self.ends.final_norm(residual[step.wanted_rows])
        return _scaled(self.ends.head.all_rows(rows), head)

    def lm_head_sample(self, step: Step, residual: torch.Tensor, head: HeadSpec) -> Answers:
        batch = step.batch
        if any(chunk.states_to is not None for chunk in batch.chunks):
            step.hand_states_out(self.ends.final_norm(residual))
        if not step.sampled_rows:
            return [()] * len(batch.chunks)
        rows = self.ends.final_norm(residual[step.sampled_rows])
        return self._chosen(step, rows, _scaled(self.ends.head.each_row(rows), head))

    def enter_states(self, step: Step) -> torch.Tensor:
        return step.given_states()

    def add_bent(self, step: Step, residual: torch.Tensor, linear: BoundLinear) -> torch.Tensor:
        bent = activated(linear.multiply(residual, step.single_rows), "silu", step.single_rows)
        return residual.add_(bent)

    def choose_by(
        self, step: Step, residual: torch.Tensor, matrix: Linear, head: HeadSpec
    ) -> Answers:
        rows = residual[step.sampled_rows]
        return self._chosen(step, rows, _scaled(matrix.each_row(rows), head))

    def _chosen(self, step: Step, rows: torch.Tensor, logits: torch.Tensor) -> Answers:
        """Return the tokens that follow each chunk, by logits of the rows that ask for one."""
        batch = step.batch
        every_row = [row for sampling in batch.sampling for row in sampling]
        masks = _masks_of(batch, every_row, logits.shape[1])
        sampled = map(_choose, logits, rows, every_row, masks)
        return [
            accepted(chunk, list(islice(sampled, len(sampling))))
            for chunk, sampling in zip(batch.chunks, batch.sampling, strict=True)
        ]


def _key_factors(weights: BoundWeights, spec: ModelSpec) -> dict[int, array[float]]:
    return key_factors(spec, lambda bias: weights.vector(bias).tolist())


def heads_of(spec: ModelSpec, layer: int) -> AttentionSpec:
    """Return the attention of a layer that has one."""
    mixer = spec.layers[layer].mixer
    assert is_attention(mixer)
    return mixer


def _choose(
    logits: torch.Tensor, hidden: torch.Tensor, how: SamplingRow, mask: torch.Tensor | None
) -> SampledToken:
    chosen = sample(logits, how, mask)
    return chosen._replace(hidden=hidden.tolist()) if how.wants_hidden else chosen


def _normed(values: torch.Tensor, norm: BoundNorm | None) -> torch.Tensor:
    return values if norm is None else norm(values)


def _split(
    qkv: torch.Tensor, attention: AttentionSpec
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Return queries, gates, keys and values; values mean nothing where there are no own keys."""
    sizes = [attention.query_columns, attention.query_columns * attention.is_gated]
    if attention.kv_of_layer is None:
        sizes += [attention.kv_columns] * (1 if attention.values_are_keys else 2)
    parts = torch.split(qkv, sizes, 1)
    gate = parts[1] if attention.is_gated else None
    return parts[0], gate, parts[2] if len(parts) > 2 else None, parts[-1]


def _head_norm(columns: torch.Tensor, norm: BoundNorm | None, head_dim: int) -> torch.Tensor:
    """Return heads [tokens, heads, head_dim], normed each, or all together by a wide norm."""
    if norm is not None and norm.weight.shape[-1] == columns.shape[1]:
        columns, norm = norm(columns), None
    return _normed(columns.reshape(columns.shape[0], -1, head_dim), norm)


def _masks_of(
    batch: StepBatch, rows: Sequence[SamplingRow], vocab_size: int
) -> list[torch.Tensor | None]:
    """Return the mask of each row, None where it has none."""
    if batch.masks is None:
        return [None] * len(rows)
    row_bytes = mask_bytes(vocab_size)
    words = torch.empty(sum(row.is_masked for row in rows), row_bytes // 4, dtype=torch.int32)
    batch.masks.write(words.data_ptr(), row_bytes)
    masks = iter(words)
    return [next(masks) if row.is_masked else None for row in rows]


def _scaled(logits: torch.Tensor, head: HeadSpec) -> torch.Tensor:
    if head.logit_scale != 1.0:
        logits.mul_(head.logit_scale)
    if head.softcap is not None:
        logits.div_(head.softcap).tanh_().mul_(head.softcap)
    return logits
