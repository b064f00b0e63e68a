"""What a backend does: the operations that a model's program is written over.

Tensors are opaque here: a program passes on what an operation returned and never looks inside.
Weights are handles: what a backend made of them when it was opened, found under the names that the
spec of a layer gives them. The arithmetic of each operation is in ``zse.kernels``.
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
        """Whether the next layer has been computed already, with others that are like it.

        Asked once for each layer, in their order.
        """

    def layer(self, layer: LayerSpec) -> AbstractContextManager[LayerWeights]:
        """Return the scope of a layer: its weights are where the operations read them."""

    def embed(self, step: Step, embedding: Handle, scale: float) -> Handle:
        """Return the residual stream [tokens, hidden]: the tokens' rows times ``scale``.

        To them come the rows of their positions and of their types, where an embedding has any,
        and then its norm.
        """

    def layer_inputs(
        self, step: Step, residual: Handle, weights: LayerInputsWeights, inputs: LayerInputsSpec
    ) -> Handle:
        """Return what all layers are told of each token, [tokens, layers * width].

        That is norm(residual @ projection^T), the norm of each layer's columns, plus the tokens'
        rows of the table times their scale. The stream stays as it is.
        """

    def norm_linear(
        self, step: Step, residual: Handle, norm: Handle | None, linear: Handle
    ) -> Handle:
        """Return norm(residual) @ linear^T + its bias, [tokens, rows of linear].

        Without a norm the stream itself is multiplied; so it is with every norm below.
        """

    def rope_store(
        self, step: Step, qkv: Handle, attention: AttentionSpec, weights: LayerWeights, layer: int
    ) -> Handle:
        """Normalize heads if asked, rotate q and k, store k and v.

        With a latent: make queries that are as wide as what is kept, and store that.

        Returns:
            Queries [tokens, heads, dim], with the gates of those that have any. Keys and values
            are stored unless the layer reads those of another one.
        """

    def attention(
        self, step: Step, query: Handle, attention: AttentionSpec, weights: LayerWeights, layer: int
    ) -> Handle:
        """Return attention, [tokens, heads * dim]: causal over the sequence so far, or all of it.

        Of whole texts all tokens see each other, and a window reaches to both sides. With a latent
        ``dim`` is that of its values.
        """

    def delta(
        self,
        step: Step,
        residual: Handle,
        weights: LayerWeights,
        delta: LinearAttentionSpec,
        layer: int,
    ) -> Handle:
        """Return what a linear attention reads from its state, [tokens, value heads * value dim].

        norm(residual) is projected, convolved over time and mixed by the gated delta rule, with the
        state of the token's sequence, which it changes; then each head is normalized and gated.
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
        """Return what a mixture of experts adds, [tokens, hidden]: for ``add``.

        That is post_norm(sum of weight * expert(norm(residual)) over the chosen experts, and the
        shared expert, times the sigmoid of its gate).
        """

    def dense(self, step: Step, inputs: Handle, linear: Handle, post_norm: Handle | None) -> Handle:
        """Return post_norm(inputs @ linear^T + its bias), [tokens, hidden]: for ``add``."""

    def add(
        self,
        step: Step,
        residual: Handle,
        added: Sequence[Handle],
        scale: float,
        post_norm: Handle | None,
    ) -> Handle:
        """Return residual + scale * post_norm(sum of ``added``), which no one reads again.

        May reuse ``residual``.
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

        ``told`` is what ``layer_inputs`` returned.
        """

    def scale_stream(self, step: Step, residual: Handle, factor: Handle) -> Handle:
        """Return the residual stream times one number. May reuse ``residual``."""

    def norm_stream(self, step: Step, residual: Handle, norm: Handle) -> Handle:
        """Return norm(residual), which is the stream from here on. May reuse ``residual``."""

    def lm_head(self, step: Step, residual: Handle, head: HeadSpec) -> Handle:
        """Return float32 logits of the rows whose chunks want them, [wanted, vocab]."""

    def lm_head_sample(self, step: Step, residual: Handle, head: HeadSpec) -> Sampled:
        """Choose a token for each sampling row of the step."""


class StageOperations(Operations, Protocol):
    """What a backend has besides that computes some layers of a model."""

    def enter_stream(self, step: Step) -> Handle:
        """Return the residual stream behind the layers before these, which another one computes."""

    def leave_stream(self, step: Step, residual: Handle) -> Sampled:
        """Leave the stream, with all that is to be added, for the layers that come after these."""

    def pass_on(self, step: Step, left: Sampled) -> None:
        """Send what a pass outside of the pool has left to whoever computes those layers."""


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
        """Return an adapter as chunks name it; its memory is given back with the last of them.

        Raises:
            LoRAError: A number in it is not finite.
            UnsupportedModelError: This device adds no adapters.
        """

    @property
    def kv_images(self) -> KVImages:
        """What blocks of the pool look like outside of it."""

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        """Copy the content of some blocks out, behind the steps that were submitted.

        Args:
            group: Of layers; 0 keeps whole sequences, those behind it are ``windows``.
            blocks: Blocks of its pool, in the order that the image gets.
            image: Filled; ``kv_images`` says how many bytes a block has.
        """

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        """Copy what ``read_blocks`` gave into blocks that no step in flight reads.

        The image may be gone when this returns; steps that are submitted afterwards see its
        content.

        Args:
            group: As there.
            blocks: Those that are filled.
            image: Of as many blocks or more.
            first: Which block of the image the first of them gets.
        """

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Give back memory that no step needs until the next one comes, where it can be had again.

        Args:
            free_blocks: Blocks of each group of layers, ascending, whose content is of no use;
                nothing where nobody uses the pool.
        """

    def join_rows(self, parts: Sequence[Handle]) -> LogitRows:
        """Return the rows of what ``lm_head`` returned, in the host's memory."""

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
