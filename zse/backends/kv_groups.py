"""Which layers keep which tokens of a sequence, and how memory is shared out among them.

Layers that see everything keep everything, in blocks of one pool. Layers with a window keep what
it sees: those of each window have a pool of their own (``zse.kv.windows``), which is small, since
it holds windows and not sequences. What memory is left holds whole sequences. Windows of all
sequences that may run take half of it at most; where that is too little, fewer of them run at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.backends.resident import cached_attentions, kv_layer_bytes
from zse.backends.types import MAX_DRAFTS
from zse.kv.windows import WindowGroup, blocks_each, most_blocks
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_STEPS_IN_FLIGHT = 2
"""Steps whose drafts may not have been judged yet."""


@record
class KVGroups:
    """The groups of a model's layers: 0 keeps all tokens, those behind it keep their window."""

    of_layer: Mapping[int, int]
    """Group of each layer that keeps keys and values."""
    windows: tuple[int, ...] = ()
    """Tokens that the layers of each further group see, ascending."""
    most_blocks: tuple[int, ...] = ()
    """Blocks that each of these groups can need at once."""
    least_blocks: tuple[int, ...] = ()
    """Blocks that it needs for one sequence, those of a step included."""
    step_blocks: int = 0
    """Blocks of what a step computes."""
    is_limited: bool = False
    """Whether ``most_blocks`` are fewer than all sequences that may run can need."""

    def num_blocks(self, whole: int) -> tuple[int, ...]:
        """Return the blocks of each group's pool, given those that hold whole sequences."""
        return whole, *(min(whole, most) for most in self.most_blocks)

    def pools_of(self, num_blocks: Sequence[int]) -> tuple[WindowGroup, ...]:
        """Return the pools of windows, given the blocks of each group's pool."""
        return tuple(
            WindowGroup(
                window=window,
                num_blocks=count,
                most_reserved=(
                    count - self.step_blocks if self.is_limited and count < num_blocks[0] else None
                ),
            )
            for window, count in zip(self.windows, num_blocks[1:], strict=True)
        )

    def within(self, memory_bytes: int, block_bytes: Sequence[int]) -> KVGroups:
        """Return groups whose windows take half of some memory at most, where it holds more then.

        Layers that keep whole sequences have the other half; windows have all if there are none.
        """
        sizes, has_whole = block_bytes[1:], block_bytes[0] > 0
        room = max(0, memory_bytes // 2 if has_whole else memory_bytes)
        needed = sum(most * size for most, size in zip(self.most_blocks, sizes, strict=True))
        if needed <= room:
            return self
        most = tuple(
            max(most * room // needed, least)
            for most, least in zip(self.most_blocks, self.least_blocks, strict=True)
        )
        fewer = replace(self, most_blocks=most, is_limited=True)
        counts = [one.fitting(memory_bytes, block_bytes, useful=0) for one in (self, fewer)]
        return fewer if not has_whole or counts[1] > counts[0] else self

    def length_bytes(self, whole: int, block_bytes: Sequence[int]) -> int:
        """Return the bytes of all pools; ``block_bytes`` are those of a block of each group."""
        sizes = self.num_blocks(whole)
        return sum(size * each for size, each in zip(sizes, block_bytes, strict=True))

    def fitting(self, memory_bytes: int, block_bytes: Sequence[int], *, useful: int) -> int:
        """Return how many blocks for whole sequences fit, with what windows need beside them.

        Args:
            memory_bytes: Of all pools.
            block_bytes: Bytes of a block of each group.
            useful: Blocks that sequences can use; looked at where whole ones take no memory.
        """
        low, high = 0, max(0, memory_bytes) // block_bytes[0] if block_bytes[0] else useful
        while low < high:
            middle = (low + high + 1) // 2
            if self.length_bytes(middle, block_bytes) <= memory_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def whole_groups(spec: ModelSpec) -> KVGroups:
    """Return one group of all layers: those with a window keep whole sequences, too.

    So one table of blocks holds for whatever layers a machine of several has.
    """
    return KVGroups(of_layer=dict.fromkeys(cached_attentions(spec), 0))


def groups_of(
    spec: ModelSpec, options: LoadOptions, *, num_sequences: int | None = None
) -> KVGroups:
    """Return the groups of a model's layers.

    Args:
        spec: The model.
        options: How long sequences are, and how much is computed together.
        num_sequences: Sequences that run at once, if not as many as the options allow.
    """
    batch, cache = options.batch, options.cache
    context = batch.max_context or spec.max_position
    seen = _windows_of(spec)
    kept = {index: window for index, window in seen.items() if window and window < context}
    windows = sorted(set(kept.values()))
    step_tokens = batch.max_batch_tokens + _STEPS_IN_FLIGHT * MAX_DRAFTS
    step_blocks = -(-step_tokens // cache.block_size)
    return KVGroups(
        of_layer={index: windows.index(kept[index]) + 1 if index in kept else 0 for index in seen},
        windows=tuple(windows),
        most_blocks=tuple(
            most_blocks(
                window,
                block_size=cache.block_size,
                num_sequences=num_sequences or batch.max_sequences,
                step_tokens=step_tokens,
                keeps_prefixes=cache.prefix_cache,
            )
            for window in windows
        ),
        least_blocks=tuple(blocks_each(one, cache.block_size) + step_blocks for one in windows),
        step_blocks=step_blocks,
    )


def kv_block_bytes(
    spec: ModelSpec, groups: KVGroups, block_size: int, dtypes: Mapping[int, str]
) -> list[int]:
    """Return the bytes of a KV block of each group, as a CPU keeps them.

    ``dtypes`` is the type of each layer (``zse.backends.kv_dtypes``).
    """
    sizes = [0] * (1 + len(groups.windows))
    for index, attention in cached_attentions(spec).items():
        sizes[groups.of_layer[index]] += kv_layer_bytes(attention, block_size, dtypes[index])
    return sizes


def _windows_of(spec: ModelSpec) -> dict[int, int]:
    """Return the window that is seen of each layer's keys, by it and by others; 0 for all."""
    seen: dict[int, list[int]] = {}
    for layer in spec.layers:
        if is_attention(layer.mixer):
            kept_by = layer.mixer.kv_of_layer
            window = layer.mixer.window or 0 if layer.mixer.is_causal else 0
            seen.setdefault(layer.index if kept_by is None else kept_by, []).append(window)
    return {index: max(windows) if all(windows) else 0 for index, windows in seen.items()}
