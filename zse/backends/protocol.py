"""What a backend does: the operations that a model program is written over.

Tensors are opaque here: a program passes on what an operation returned and never looks inside.
Weights are named as in the file. The arithmetic of each operation is in ``zse.kernels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.types import Answers, DeviceUsed, LogitRows, StepBatch

Handle: TypeAlias = Any
"""A tensor that only its backend understands."""
Step: TypeAlias = Any
"""The positions, blocks and rows of one forward pass, made by ``begin``."""
Cache: TypeAlias = Any
"""A KV pool."""
Sampled: TypeAlias = Any
"""What ``lm_head_sample`` returns and ``submit`` reads: tokens, or where on the device they are."""


class Operations(Protocol):
    """The operations. ``tokens`` is the number of tokens in the step."""

    def embed(self, step: Step, weight: str) -> Handle:
        """Return the residual stream [tokens, hidden]."""

    def norm_linear(
        self, step: Step, residual: Handle, norm: str, linear: str, bias: str | None = None
    ) -> Handle:
        """Return RMSNorm(residual) @ linear^T + bias, [tokens, rows of linear]."""

    def rope_store(
        self,
        step: Step,
        qkv: Handle,
        layer: int,
        q_norm: str | None = None,
        k_norm: str | None = None,
    ) -> Handle:
        """Normalize heads if asked, rotate q and k, store k, v; return q [tokens, heads, dim]."""

    def attention(self, step: Step, query: Handle, layer: int, window: int | None) -> Handle:
        """Return causal attention over the sequence so far, [tokens, heads * dim]."""

    def linear_residual(self, step: Step, inputs: Handle, linear: str, residual: Handle) -> Handle:
        """Return residual + inputs @ linear^T, [tokens, hidden]. May reuse ``residual``."""

    def gate_up(self, step: Step, residual: Handle, norm: str, linear: str) -> Handle:
        """Return silu(gate) * up of RMSNorm(residual) @ linear^T, [tokens, intermediate]."""

    def lm_head(self, step: Step, residual: Handle, norm: str, linear: str) -> Handle:
        """Return float32 logits of the rows the chunks ask for, [wanted, vocab]."""

    def lm_head_sample(self, step: Step, residual: Handle, norm: str, linear: str) -> Sampled:
        """Choose a token for each sampling row of the step."""


Forward: TypeAlias = "Callable[[Operations, Step], Sampled]"
"""A whole forward pass: a model's program, then the choice of tokens."""


class PendingStep(Protocol):
    """A step that has been submitted."""

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
