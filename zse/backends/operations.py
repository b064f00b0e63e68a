"""The interface of a backend: the operations that the program of every model is written in.

Tensors are opaque to the program: it passes on what an operation returned and never looks inside.
Weights are handles that a backend made when it was opened, under the field names of the layer's
spec. The arithmetic of each operation is defined by the references in ``zse.kernels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from zse.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import TypeIs

    from zse.backends.adapters import AdapterWeights
    from zse.backends.handles import (
        EndWeights,
        ExpertWeights,
        Handle,
        LayerInputsWeights,
        LayerInputWeights,
        LayerWeights,
    )
    from zse.backends.kv_images import KVImages
    from zse.backends.states import StateLayout
    from zse.backends.types import Answers, DeviceUsed, LogitRows, StepBatch
    from zse.kv.windows import WindowGroup
    from zse.models.layer_spec import (
        AttentionSpec,
        ExpertsSpec,
        LayerInputSpec,
        LayerSpec,
        LinearAttentionSpec,
        MLPSpec,
    )
    from zse.models.spec import HeadSpec, LayerInputsSpec

Step: TypeAlias = Any
"""The positions, blocks and rows of one forward pass, made by ``begin``."""
Cache: TypeAlias = Any
"""A KV pool."""
Sampled: TypeAlias = Any
"""What ``lm_head_sample`` returns and ``submit`` reads: tokens, or where on the device they are."""


class Operations(Protocol):
    """The operations. ``tokens`` is the number of tokens in the step."""

    @property
    def ends(self) -> EndWeights:
        """The weights that belong to no layer."""

    def is_computed(self, step: Step) -> bool:
        """Whether the next layer has been computed already, together with earlier layers like it.

        Called once for each layer, in execution order.
        """

    def layer(self, layer: LayerSpec) -> AbstractContextManager[LayerWeights]:
        """Return the scope of a layer, within which its weights are in the device's memory."""

    def embed(self, step: Step, embedding: Handle, scale: float) -> Handle:
        """Return the residual stream [tokens, hidden]: the tokens' embeddings times ``scale``.

        Learned position and token type embeddings are added, and the embedding's norm is applied,
        where a model has them.
        """

    def layer_inputs(
        self, step: Step, residual: Handle, weights: LayerInputsWeights, inputs: LayerInputsSpec
    ) -> Handle:
        """Return the per-layer embeddings of each token, [tokens, layers * width].

        That is norm(residual @ projection^T), normalized for each layer separately, plus the
        tokens' rows of the table times their scale. The residual stream is not changed.
        """

    def norm_linear(
        self, step: Step, residual: Handle, norm: Handle | None, linear: Handle
    ) -> Handle:
        """Return norm(residual) @ linear^T + its bias, [tokens, rows of linear].

        Where ``norm`` is None, here and below, the residual stream is not normalized.
        """

    def rope_store(
        self, step: Step, qkv: Handle, attention: AttentionSpec, weights: LayerWeights, layer: int
    ) -> Handle:
        """Normalize q and k heads if the model does, apply RoPE, and store k and v in the cache.

        In latent attention: project the queries to the width of the latent, and store the latent.

        Returns:
            Queries [tokens, heads, dim], together with the gates of gated attention. Nothing is
            stored by a layer that reads the keys and values of another layer.
        """

    def attention(
        self, step: Step, query: Handle, attention: AttentionSpec, weights: LayerWeights, layer: int
    ) -> Handle:
        """Return attention, [tokens, heads * dim]: causal, or over the whole text in an encoder.

        In an encoder a window extends to both sides. In latent attention ``dim`` is that of the
        values.
        """

    def delta(
        self,
        step: Step,
        residual: Handle,
        weights: LayerWeights,
        delta: LinearAttentionSpec,
        layer: int,
    ) -> Handle:
        """Return linear attention, [tokens, value heads * value dim], and update its state.

        norm(residual) is projected, convolved over time and mixed with the sequence's state by the
        gated delta rule; then each head is normalized and gated.
        """

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
        self, step: Step, residual: Handle, norm: Handle | None, linear: Handle, mlp: MLPSpec
    ) -> Handle:
        """Return activation(gate) * up, or activation(up), [tokens, intermediate].

        Gate and up are the columns of norm(residual) @ linear^T + its bias.
        """

    def experts(
        self, step: Step, residual: Handle, weights: ExpertWeights, experts: ExpertsSpec
    ) -> Handle:
        """Return the output of a mixture of experts, [tokens, hidden], to be passed to ``add``.

        That is post_norm of the sum of weight * expert(norm(residual)) over the chosen experts,
        plus the shared expert times the sigmoid of its gate.
        """

    def dense(self, step: Step, inputs: Handle, linear: Handle, post_norm: Handle | None) -> Handle:
        """Return post_norm(inputs @ linear^T + its bias), [tokens, hidden], for ``add``."""

    def add(
        self,
        step: Step,
        residual: Handle,
        added: Sequence[Handle],
        scale: float,
        post_norm: Handle | None,
    ) -> Handle:
        """Return residual + scale * post_norm(sum of ``added``).

        May reuse ``residual`` and ``added``, which are not read again.
        """

    def gate_input(
        self,
        step: Step,
        residual: Handle,
        told: Handle,
        weights: LayerInputWeights,
        own: LayerInputSpec,
        layer: int,
    ) -> Handle:
        """Return activation(residual @ gate^T) * the layer's columns of ``told``, [tokens, width].

        ``told`` is the per-layer embeddings that ``layer_inputs`` returned.
        """

    def scale_stream(self, step: Step, residual: Handle, factor: Handle) -> Handle:
        """Return the residual stream times one number. May reuse ``residual``."""

    def norm_stream(self, step: Step, residual: Handle, norm: Handle) -> Handle:
        """Return norm(residual), the new residual stream. May reuse ``residual``."""

    def lm_head(self, step: Step, residual: Handle, head: HeadSpec) -> Handle:
        """Return float32 logits [wanted, vocab] of the rows of chunks that want them."""

    def lm_head_sample(self, step: Step, residual: Handle, head: HeadSpec) -> Sampled:
        """Choose a token for each sampling row of the step."""


class StateOperations(Operations, Protocol):
    """Further operations of a backend that computes heads which guess from states of a model."""

    def enter_states(self, step: Step) -> Handle:
        """Return the states that the step's tokens came with, as the residual stream."""

    def add_bent(self, step: Step, residual: Handle, linear: Handle) -> Handle:
        """Return residual + silu(residual @ linear^T + its bias). May reuse ``residual``."""

    def choose_by(self, step: Step, residual: Handle, matrix: Handle, head: HeadSpec) -> Sampled:
        """Choose a token for each row by residual @ matrix^T; every row asks for one."""


class StageOperations(Operations, Protocol):
    """Further operations of a backend that computes one pipeline stage of a model."""

    def enter_stream(self, step: Step) -> Handle:
        """Return the residual stream that the stage before this one computed."""

    def leave_stream(self, step: Step, residual: Handle) -> Sampled:
        """Complete the residual stream, so that ``pass_on`` can send it to the next stage."""

    def pass_on(self, step: Step, left: Sampled) -> None:
        """Send the stream of a pass outside of the KV pool to the next stage."""


Forward: TypeAlias = "Callable[[Operations, Step], Sampled]"
"""A whole forward pass: a model's program, then the choice of tokens."""


class PendingStep(Protocol):
    """A step that has been submitted."""

    def sample(self) -> None:
        """Sample the tokens of a step with masks, now that all earlier tokens are known.

        Called at least once before ``wait``, and before the next step is submitted. Steps without
        masks do nothing here.
        """

    def wait(self) -> Answers:
        """Wait for the step and return the tokens that follow each chunk.

        A chunk with one sampling row gets one token. A ``verify`` chunk gets the accepted ones: its
        drafts as far as the model chose the same tokens, and the token after them.

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
        """Blocks in the KV pool that hold whole sequences."""

    @property
    def windows(self) -> Sequence[WindowGroup]:
        """Groups of layers that keep only a window, each with a pool of its own."""

    @property
    def states(self) -> StateLayout:
        """The states that sequences have beside their blocks, if they have any."""

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
        """Return a separate, empty KV cache, of as many blocks for each group of layers."""

    def release_cache(self, cache: Cache) -> None:
        """Give a cache of ``new_cache`` back."""

    def bind_adapter(self, adapter: AdapterWeights) -> Handle:
        """Return the handle by which chunks name an adapter; it is freed with its last reference.

        Raises:
            LoRAError: A number in it is not finite.
            UnsupportedModelError: This device adds no adapters.
        """

    @property
    def kv_images(self) -> KVImages:
        """The layout of KV blocks that were copied out of the pool."""

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        """Copy the content of some blocks out, after the steps submitted so far.

        Args:
            group: The group of layers: 0 keeps whole sequences, 1 and up are ``windows``.
            blocks: Blocks of the group's pool, in the order that they get in the image.
            image: Is filled; ``kv_images`` says how many bytes a block has.
        """

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        """Copy an image of ``read_blocks`` into blocks that no step in flight reads.

        The image may be freed when this returns; steps submitted afterwards see the content.

        Args:
            group: As in ``read_blocks``.
            blocks: Blocks of the group's pool that are filled.
            image: Holds at least as many blocks.
            first: Index of the image's block that the first of ``blocks`` gets.
        """

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Free memory while no step runs; the next step allocates it again.

        Args:
            free_blocks: For each group of layers the blocks, ascending, whose content is not needed
                any more; empty if the pool is not in use.
        """

    def join_rows(self, parts: Sequence[Handle]) -> LogitRows:
        """Return the rows of several results of ``lm_head``, in host memory."""

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes held, by use: weights, kv_cache."""

    def close(self) -> None:
        """Give the memory back."""


def is_attention(mixer: AttentionSpec | LinearAttentionSpec) -> TypeIs[AttentionSpec]:
    """Whether a mixer has keys and values in a cache; else it has a state."""
    return hasattr(mixer, "qkv")


def kept_by(mixer: AttentionSpec, layer: int) -> int:
    """Return the layer that keeps the keys and values that a layer reads."""
    return layer if mixer.kv_of_layer is None else mixer.kv_of_layer


def refuse(device: str, found: Iterator[tuple[str, str]]) -> None:
    """Refuse a model that has any of what was found: where, and what; ``device`` is in words.

    Raises:
        UnsupportedModelError: It has; the message names the first.
    """
    for where, what in found:
        raise UnsupportedModelError(
            f"{where} of this model has {what}, which {device} does not compute",
            hint="Choose a model without it, or ask for it in an issue.",
        )
