"""How the device's memory is shared out: weights, scratch, and a KV pool from the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.budget import gib
from zse.backends.gpu.kept_weights import FREE_SHARE
from zse.backends.gpu.kv_pool import BLOCK_SIZE, KVLayout, KVPool
from zse.backends.operations import is_attention
from zse.errors import DeviceError
from zse.option import with_values
from zse.options import BatchOptions
from zse.records import record
from zse.units import GIB

if TYPE_CHECKING:
    from zse.backends.gpu.budget import MemoryBudget
    from zse.backends.gpu.state_pool import StatePool
    from zse.backends.ranks import RankPart
    from zse.device.gpu import Pool
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

LARGE_BYTES = 40 * GIB
"""Memory of a GPU that has a gigabyte to spare for the activations of longer steps."""
LONG_STEP_TOKENS = 8192
SCRATCH_RANGE_BYTES = 16 * GIB
"""Addresses reserved for scratch memory; memory itself is taken as steps need it."""


@record
class SequenceMemory:
    """What sequences leave for their next tokens."""

    cache: KVPool
    states: StatePool | None
    """None where sequences have none."""

    def close(self) -> None:
        self.cache.close()
        if self.states is not None:
            self.states.close()


@record
class DeviceMemory:
    """What one backend holds besides its weights."""

    sequences: SequenceMemory
    scratch: Pool


def limited(layout: KVLayout, budget: MemoryBudget, options: LoadOptions) -> KVLayout:
    """Return a layout whose windows leave room for whole sequences."""
    cache = options.cache
    if cache.num_blocks:
        return layout
    memory_bytes = min(cache.kv_bytes or budget.for_cache, budget.for_cache)
    return replace(layout, groups=layout.groups.within(memory_bytes, layout.block_bytes()))


def with_long_steps(spec: ModelSpec, options: LoadOptions, total_bytes: int) -> LoadOptions:
    """Return options with longer steps for prompts, where the GPU is large and nobody set a length.

    Weights are read once a step, and the last programs of a kernel leave others idle once a step:
    8,192 tokens at a time are read an eighth faster than 2,048. Answers that go on beside a prompt
    get pieces that are cut to a time. Kernels of other layers than plain ones were not tried so.
    """
    allowed = options.device.vram_bytes or total_bytes
    is_free = options.batch.max_batch_tokens == BatchOptions().max_batch_tokens
    is_usual = not (spec.is_encoder or options.device.deterministic or options.lora.gpu_bytes)
    if not (is_free and is_usual and min(allowed, total_bytes) >= LARGE_BYTES):
        return options
    for layer in spec.layers:
        mixer = layer.mixer
        if layer.experts is not None or not is_attention(mixer) or mixer.window or mixer.latent:
            return options
    return with_values(options, {"max_batch_tokens": LONG_STEP_TOKENS})


def with_agreement(
    part: RankPart, spec: ModelSpec, options: LoadOptions, total_bytes: int
) -> LoadOptions:
    """Return options by which all ranks of a model make steps of one length, of as many rows.

    Stages get prompts in pieces, of which all are computed at once: these stay short.

    Args:
        spec: Of this rank's share.
        total_bytes: Memory of its GPU.
    """
    own_bytes = min(options.device.vram_bytes or total_bytes, total_bytes)
    most, least_bytes = part.link.least([options.batch.max_sequences, own_bytes])
    options = with_values(options, {"max_sequences": most})
    return options if part.edges is not None else with_long_steps(spec, options, least_bytes)


def kept_limit_bytes(
    budget: MemoryBudget, layout: KVLayout, options: LoadOptions, total_bytes: int
) -> int:
    """Return how much memory weights may be kept in that are turned for prompts.

    Args:
        total_bytes: What all of them take.
    """
    wanted = options.device.prefill_weights
    if wanted != "auto":
        return total_bytes if wanted == "keep" else 0
    blocks = layout.block_bytes()
    cache_bytes = layout.groups.length_bytes(options.cache.num_blocks, blocks)
    spared = budget.for_cache - max(cache_bytes, options.cache.kv_bytes)
    return max(0, min(total_bytes, budget.for_cache // FREE_SHARE, spared))


def choose_num_blocks(
    budget: MemoryBudget, layout: KVLayout, spec: ModelSpec, options: LoadOptions
) -> int:
    """Return the blocks of the KV pool that hold whole sequences.

    ``num_blocks`` wins, then ``kv_bytes``; else it is what is left, as far as sequences of full
    length can use it.

    Raises:
        DeviceError: It does not fit; the message says what does.
    """
    block_bytes, groups = layout.block_bytes(), layout.groups
    budget.check(sum(block_bytes))
    if spec.is_encoder:
        return 1  # a text's keys and values live for one step, which brings the memory
    per_sequence = -(-(options.batch.max_context or spec.max_position) // BLOCK_SIZE)
    useful = per_sequence * options.batch.max_sequences
    fitting = groups.fitting(budget.for_cache, block_bytes, useful=useful)
    wanted = options.cache.num_blocks or groups.fitting(
        options.cache.kv_bytes, block_bytes, useful=useful
    )
    if not wanted:
        return min(fitting, useful)
    if wanted > fitting:
        wanted_bytes = groups.length_bytes(wanted, block_bytes)
        raise DeviceError(
            f"a KV cache of {gib(wanted_bytes)} was asked for; {gib(budget.for_cache)} "
            f"are left, which hold {fitting * BLOCK_SIZE} tokens",
            hint="Ask for less with --kv-gib, or leave it out to use what is left.",
        )
    return wanted
