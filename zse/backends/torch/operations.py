"""The operations in torch, float32 arithmetic throughout."""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from zse.backends.operations import EndWeights, LayerWeights, bind_layer, obstacles, refuse
from zse.backends.torch.attention import attend
from zse.backends.torch.rotary import RotaryTable, rotate
from zse.backends.torch.sampling import sample
from zse.backends.types import accepted, mask_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.torch.step import Step
    from zse.backends.torch.weights import BoundLinear, BoundNorm, Weights
    from zse.backends.types import Answers, SampledToken, StepBatch
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.models.spec import AttentionSpec, HeadSpec, LayerSpec, MLPSpec, ModelSpec

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda values: functional.relu(values).square_(),
}


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that is not computed here, with an ``UnsupportedModelError``."""
    refuse("the torch backend", obstacles(spec))


class TorchOperations:
    """See ``zse.backends.operations.Operations``; the model has been checked."""

    def __init__(self, weights: Weights, spec: ModelSpec) -> None:
        self.ends = EndWeights(
            embedding=weights.embedding_rows,
            final_norm=weights.norm(spec.head.norm),
            head=weights.head(spec),
        )
        self._scopes = [
            contextlib.nullcontext(bind_layer(layer, weights.linear, weights.norm))
            for layer in spec.layers
        ]
        attentions: list[AttentionSpec] = [layer.mixer for layer in spec.layers]  # type: ignore[misc]
        self._head_norms = [weights.head_norms(attention) for attention in attentions]
        ropes = {attention.rope for attention in attentions}
        self._rotary = {rope: RotaryTable(rope) for rope in ropes if rope is not None}

    def drop(self) -> None:
        self._scopes.clear()
        self._head_norms.clear()
        self.ends = EndWeights(embedding=None, final_norm=None, head=None)

    def layer(self, layer: LayerSpec) -> contextlib.AbstractContextManager[LayerWeights]:
        return self._scopes[layer.index]

    def embed(
        self, step: Step, embedding: Callable[[torch.Tensor], torch.Tensor], scale: float
    ) -> torch.Tensor:
        rows = embedding(step.token_ids)
        return rows if scale == 1.0 else rows.mul_(scale)

    def norm_linear(
        self, step: Step, residual: torch.Tensor, norm: BoundNorm, linear: BoundLinear
    ) -> torch.Tensor:
        return linear.multiply(norm(residual), step.single_rows)

    def rope_store(
        self,
        step: Step,
        qkv: torch.Tensor,
        attention: AttentionSpec,
        weights: LayerWeights,  # noqa: ARG002 - the norms of queries and keys are joined here
        layer: int,
    ) -> torch.Tensor:
        num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
        heads = qkv.view(qkv.shape[0], -1, attention.head_dim)
        turning = heads[:, : num_heads + num_kv_heads]
        if (head_norms := self._head_norms[layer]) is not None:
            turning = head_norms(turning)
        assert attention.rope is not None
        rotated = rotate(turning, *step.rotary[attention.rope])
        query, keys = torch.split(rotated, [num_heads, num_kv_heads], 1)
        pool = step.cache[layer].view(-1, 2 * num_kv_heads, attention.head_dim)
        stored = torch.cat((keys, heads[:, num_heads + num_kv_heads :]), 1)
        pool.index_copy_(0, step.slots, stored.to(pool.dtype))
        return query

    def attention(
        self, step: Step, query: torch.Tensor, attention: AttentionSpec, layer: int
    ) -> torch.Tensor:
        return attend(step, query.contiguous(), attention, layer)

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
        added = linear.multiply(inputs, step.single_rows)
        if post_norm is not None:
            added = post_norm(added)
        return residual.add_(added if scale == 1.0 else added.mul_(scale))

    def gate_up(
        self, step: Step, residual: torch.Tensor, norm: BoundNorm, linear: BoundLinear, mlp: MLPSpec
    ) -> torch.Tensor:
        joined = linear.multiply(norm(residual), step.single_rows)
        single = step.single_rows
        if joined.shape[0] == 1 or single == 0:
            return _activate(joined, mlp)
        # One row at a time: vectorized and scalar exponentials differ in the last bit, and which
        # of them an element gets depends on where it lies in the whole tensor.
        parts = [_activate(row, mlp) for row in torch.split(joined[:single], 1)]
        if single < joined.shape[0]:
            parts.append(_activate(joined[single:], mlp))
        return torch.cat(parts)

    def lm_head(self, step: Step, residual: torch.Tensor, head: HeadSpec) -> torch.Tensor:
        rows = self.ends.final_norm(residual[step.wanted_rows])
        return _scaled(self.ends.head.all_rows(rows), head)

    def lm_head_sample(self, step: Step, residual: torch.Tensor, head: HeadSpec) -> Answers:
        batch = step.batch
        if not step.sampled_rows:
            return [()] * len(batch.chunks)
        rows = self.ends.final_norm(residual[step.sampled_rows])
        logits = _scaled(self.ends.head.each_row(rows), head)
        every_row = [row for sampling in batch.sampling for row in sampling]
        masks = _masks_of(batch, every_row, logits.shape[1])
        sampled = map(_choose, logits, rows, every_row, masks)
        return [
            accepted(chunk, list(islice(sampled, len(sampling))))
            for chunk, sampling in zip(batch.chunks, batch.sampling, strict=True)
        ]


def _choose(
    logits: torch.Tensor, hidden: torch.Tensor, how: SamplingRow, mask: torch.Tensor | None
) -> SampledToken:
    chosen = sample(logits, how, mask)
    return chosen._replace(hidden=hidden.tolist()) if how.wants_hidden else chosen


def _activate(joined: torch.Tensor, mlp: MLPSpec) -> torch.Tensor:
    activation = _ACTIVATIONS[mlp.activation]
    if not mlp.is_gated:
        return activation(joined)
    gate, up = joined.chunk(2, -1)
    return activation(gate).mul_(up)


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
    return logits if head.logit_scale == 1.0 else logits.mul_(head.logit_scale)
