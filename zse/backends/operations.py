"""What a backend does: the operations that a model's program is written over.

Tensors are opaque here: a program passes on what an operation returned and never looks inside.
Weights are handles: what a backend made of them when it was opened, found under the names that the
spec of a layer gives them. The arithmetic of each operation is in ``zse.kernels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from zse.errors import UnsupportedModelError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from zse.backends.types import Answers, DeviceUsed, LogitRows, StepBatch
    from zse.models.spec import (
        AttentionSpec,
        HeadSpec,
        LayerSpec,
        LinearSpec,
        MLPSpec,
        ModelSpec,
        NormSpec,
    )

Handle: TypeAlias = Any
"""A tensor or a weight that only its backend understands."""
Step: TypeAlias = Any
"""The positions, blocks and rows of one forward pass, made by ``begin``."""
Cache: TypeAlias = Any
"""A KV pool."""
Sampled: TypeAlias = Any
"""What ``lm_head_sample`` returns and ``submit`` reads: tokens, or where on the device they are."""


@record
class LayerWeights:
    """Handles of one layer, under the names of its spec; None where the spec has none."""

    mixer_norm: Handle
    qkv: Handle
    q_norm: Handle | None
    k_norm: Handle | None
    output: Handle
    mixer_post_norm: Handle | None
    mlp_norm: Handle
    up: Handle
    down: Handle
    mlp_post_norm: Handle | None


@record
class EndWeights:
    """Handles of what stands before the first layer and behind the last."""

    embedding: Handle
    final_norm: Handle
    head: Handle


class Operations(Protocol):
    """The operations. ``tokens`` is the number of tokens in the step."""

    @property
    def ends(self) -> EndWeights:
        """The weights that belong to no layer."""

    def layer(self, layer: LayerSpec) -> AbstractContextManager[LayerWeights]:
        """Return the scope of a layer: its weights are where the operations read them."""

    def embed(self, step: Step, embedding: Handle, scale: float) -> Handle:
        """Return the residual stream [tokens, hidden]: the tokens' rows times ``scale``."""

    def norm_linear(self, step: Step, residual: Handle, norm: Handle, linear: Handle) -> Handle:
        """Return norm(residual) @ linear^T + its bias, [tokens, rows of linear]."""

    def rope_store(
        self, step: Step, qkv: Handle, attention: AttentionSpec, weights: LayerWeights, layer: int
    ) -> Handle:
        """Normalize heads if asked, rotate q and k, store k, v; return q [tokens, heads, dim]."""

    def attention(self, step: Step, query: Handle, attention: AttentionSpec, layer: int) -> Handle:
        """Return causal attention over the sequence so far, [tokens, heads * dim]."""

    def linear_residual(
        self,
        step: Step,
        inputs: Handle,
        linear: Handle,
        residual: Handle,
        scale: float,
        post_norm: Handle | None,
    ) -> Handle:
        """Return residual + scale * post_norm(inputs @ linear^T + its bias), [tokens, hidden].

        May reuse ``residual``.
        """

    def gate_up(
        self, step: Step, residual: Handle, norm: Handle, linear: Handle, mlp: MLPSpec
    ) -> Handle:
        """Return activation(gate) * up, or activation(up), [tokens, intermediate].

        Gate and up are the columns of norm(residual) @ linear^T + its bias.
        """

    def lm_head(self, step: Step, residual: Handle, head: HeadSpec) -> Handle:
        """Return float32 logits of the rows whose chunks want them, [wanted, vocab]."""

    def lm_head_sample(self, step: Step, residual: Handle, head: HeadSpec) -> Sampled:
        """Choose a token for each sampling row of the step."""


Forward: TypeAlias = "Callable[[Operations, Step], Sampled]"
"""A whole forward pass: a model's program, then the choice of tokens."""


class PendingStep(Protocol):
    """A step that has been submitted."""

    def sample(self) -> None:
        """Let a step with masks choose its tokens: every token before it is known now.

        Called once or more before ``wait``, and before the next step is submitted. Other steps do
        nothing here.
        """

    def wait(self) -> Answers:
        """Wait for the step and return the tokens that follow each chunk.

        A chunk with one sampling row gets one token; a ``verify`` chunk gets those that stand: its
        drafts as far as the model would have chosen them, and the one after.

        Any thread may wait, while other work is submitted. Called once for each step, in the order
        in which they were submitted.

        Raises:
            DeviceError: The device failed; nothing that was submitted will be answered.
        """


class Backend(Operations, Protocol):
    """Operations with weights and a KV pool on one device."""

    @property
    def device(self) -> DeviceUsed:
        """What it runs on."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a step can be submitted before the one before it has been waited for.

        If so, a decode chunk may carry ``PENDING_TOKEN``, and at most two steps are in flight.
        """

    @property
    def block_size(self) -> int:
        """Tokens in a KV block."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""

    def submit(self, batch: StepBatch, forward: Forward) -> PendingStep:
        """Compute one step over the pool: begin it, then run ``forward`` on it.

        ``forward`` issues the same operations in the same order for every batch, so a backend may
        record what it issues for a shape and repeat that later without calling it.

        Raises:
            EngineError: A chunk is empty, names an unknown token or lacks blocks.
            DeviceError: The device failed.
        """

    def begin(self, batch: StepBatch, cache: Cache | None = None) -> Step:
        """Prepare one forward pass over the pool, or over a cache of ``new_cache``."""

    def new_cache(self, num_blocks: int) -> Cache:
        """Return a separate, empty KV cache."""

    def release_cache(self, cache: Cache) -> None:
        """Give a cache of ``new_cache`` back."""

    def copy_block(self, source: int, destination: int) -> None:
        """Copy one KV block of every layer."""

    def join_rows(self, parts: Sequence[Handle]) -> LogitRows:
        """Return the rows of what ``lm_head`` returned, in the host's memory."""

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes held, by use: weights, kv_cache."""

    def close(self) -> None:
        """Give the memory back."""


def bind_layer(
    layer: LayerSpec, linear: Callable[[LinearSpec], Handle], norm: Callable[[NormSpec], Handle]
) -> LayerWeights:
    """Return the handles of a layer of attention and a dense MLP."""

    def optional(spec: NormSpec | None) -> Handle | None:
        return None if spec is None else norm(spec)

    attention, mlp = cast("AttentionSpec", layer.mixer), cast("MLPSpec", layer.mlp)
    return LayerWeights(
        mixer_norm=norm(layer.mixer_norm),
        qkv=linear(attention.qkv),
        q_norm=optional(attention.q_norm),
        k_norm=optional(attention.k_norm),
        output=linear(attention.output),
        mixer_post_norm=optional(layer.mixer_post_norm),
        mlp_norm=norm(layer.mlp_norm),
        up=linear(mlp.up),
        down=linear(mlp.down),
        mlp_post_norm=optional(layer.mlp_post_norm),
    )


def obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Return what no backend computes yet: where a model has it, and what it is."""
    first = spec.layers[0].mixer
    for layer in spec.layers:
        where, attention = f"layer {layer.index}", cast("AttentionSpec", layer.mixer)
        if layer.experts is not None or layer.mlp is None:
            yield where, "a mixture of experts"
        if not hasattr(attention, "qkv"):
            yield where, "linear attention"
        elif attention.rope is None or attention.rope.rotary_dim != attention.head_dim:
            yield where, "heads that are not rotated as a whole"
        elif any(getattr(attention, name) != getattr(first, name) for name in _HEADS):
            yield where, "other heads than the first layer"
        elif any(getattr(attention, name) is not None for name in _ATTENTION_OPTIONS):
            yield where, "attention with sinks, capped scores or another layer's keys"
        elif {_kind(attention.q_norm), _kind(attention.k_norm)} not in ({""}, {"rms"}):
            yield where, "norms of heads that are no pair of RMSNorms"
    for layer in spec.extra_heads:
        yield f"layer {layer.index}", "a head that guesses further tokens"
    if spec.head.weight is None or spec.head.softcap is not None or spec.head.pooling != "none":
        yield "the head", "capped logits, or vectors in place of logits"


def refuse(device: str, found: Iterator[tuple[str, str]]) -> None:
    """Refuse a model that has anything of what ``obstacles`` found; ``device`` is in words.

    Raises:
        UnsupportedModelError: It has; the message names the first.
    """
    for where, what in found:
        raise UnsupportedModelError(
            f"{where} of this model has {what}, which {device} does not compute",
            hint="Choose a model without it, or ask for it in an issue.",
        )


def _kind(norm: NormSpec | None) -> str:
    return "" if norm is None else norm.kind


_HEADS = ("num_heads", "num_kv_heads", "head_dim")
_ATTENTION_OPTIONS = ("sinks", "softcap", "kv_of_layer")
