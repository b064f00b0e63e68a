"""How the device's memory is shared out: weights, scratch, and a KV pool from the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zse.backends.cuda.kv_pool import BLOCK_SIZE, KVLayout, KVPool
from zse.errors import DeviceError

if TYPE_CHECKING:
    from zse.backends.options import BackendOptions, ModelShape
    from zse.device.cuda import VirtualPool

GIB = 1 << 30
MARGIN_BYTES = 512 << 20
"""Left free for the driver, captured graphs and kernels' code."""
SCRATCH_RANGE_BYTES = 16 * GIB
"""Addresses reserved for scratch memory; memory itself is taken as steps need it."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """What one backend holds besides its weights."""

    cache: KVPool
    scratch: VirtualPool


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """What there is, and what is spoken for, in bytes."""

    free: int
    """Free on the device before anything of the model is there."""
    allowed: int
    """Total that the user allows; 0 is all."""
    weights: int
    scratch: int = 0
    """Scratch memory of the largest step."""

    def with_scratch(self, scratch: int) -> MemoryBudget:
        """Return the budget once the scratch memory is known."""
        return replace(self, scratch=scratch)

    def check_weights(self) -> None:
        """Refuse a model whose weights alone do not fit.

        Raises:
            DeviceError: They do not.
        """
        if self.for_cache <= 0:
            raise _too_small(self, 0)

    @property
    def for_cache(self) -> int:
        """What is left for the KV pool; negative when not even the weights fit."""
        limit = self.free - MARGIN_BYTES
        if self.allowed:
            limit = min(limit, self.allowed - MARGIN_BYTES)
        return limit - self.weights - self.scratch


def choose_num_blocks(
    budget: MemoryBudget, layout: KVLayout, shape: ModelShape, options: BackendOptions
) -> int:
    """Return the blocks of the KV pool.

    Args:
        budget: What is left.
        layout: Bytes of a block.
        shape: The model.
        options: ``num_blocks`` wins, then ``kv_bytes``; else what is left, as far as sequences of
            full length can use it.

    Raises:
        DeviceError: It does not fit; the message says what does.
    """
    block_bytes = layout.block_bytes()
    if budget.for_cache < block_bytes:
        raise _too_small(budget, block_bytes)
    per_sequence = -(-(options.max_context or shape.max_position) // BLOCK_SIZE)
    fitting = budget.for_cache // block_bytes
    wanted = options.num_blocks or options.kv_bytes // block_bytes
    if not wanted:
        return int(min(fitting, per_sequence * options.max_sequences))
    if wanted > fitting:
        raise DeviceError(
            f"a KV cache of {gib(wanted * block_bytes)} was asked for; {gib(budget.for_cache)} "
            f"are left, which hold {fitting * BLOCK_SIZE} tokens",
            hint="Ask for less with --kv-gib, or leave it out to use what is left.",
        )
    return int(wanted)


def _too_small(budget: MemoryBudget, cache_bytes: int) -> DeviceError:
    needed = budget.weights + budget.scratch + MARGIN_BYTES + cache_bytes
    allowed = f", {gib(budget.allowed)} are allowed" if budget.allowed else ""
    return DeviceError(
        f"the model needs {gib(needed)} of GPU memory ({gib(budget.weights)} weights, "
        f"{gib(budget.scratch)} scratch, {gib(MARGIN_BYTES)} for the driver, and a KV cache); "
        f"{gib(budget.free)} are free{allowed}",
        hint="Use a larger GPU, a smaller quantization, or allow more with --vram.",
    )


def gib(length_bytes: int) -> str:
    """Return bytes as text."""
    return f"{length_bytes / GIB:.2f} GiB"
