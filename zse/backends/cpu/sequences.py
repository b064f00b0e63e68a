"""Where sequences keep what later steps read on a CPU: keys, values and states, as room allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.cpu.cache import KVCache
from zse.backends.cpu.kept import BlockImages, SequenceMemory
from zse.backends.cpu.states import StatePool
from zse.backends.kv_dtypes import named
from zse.backends.kv_groups import kv_block_bytes
from zse.backends.kv_images import KVImages, layout_name
from zse.backends.pool_size import choose_num_blocks, limited
from zse.backends.ranks import agreed
from zse.backends.states import MOST_DRAFT_STATES, StateLayout, states_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.backends.ranks import RankLink
    from zse.device.probe import DeviceInfo
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions


class Sequences:
    """Blocks of keys and values and slots of states, whose number is chosen here.

    Args:
        spec: The model.
        options: What was asked for.
        machine: What there is, of which ranks have a share each.
        groups: The groups of the model's layers.
        dtypes: Of keys and values, by the layer that keeps them.
        link: To the other ranks, which have as many blocks; None: there are none.

    Raises:
        DeviceError: The memory that was asked for is not there, or holds no block.
    """

    def __init__(
        self,
        spec: ModelSpec,
        options: LoadOptions,
        machine: DeviceInfo,
        groups: KVGroups,
        dtypes: Mapping[int, str],
        link: RankLink | None = None,
    ) -> None:
        self._spec = spec
        self._dtypes = dtypes
        # Only the rank that chooses tokens knows which drafts stood.
        num_drafts = MOST_DRAFT_STATES if link is None else 0
        self.states = states_of(spec, options, num_drafts=num_drafts)
        self.block_size = options.cache.block_size
        self.block_bytes = kv_block_bytes(spec, groups, self.block_size, dtypes)
        """Of a block of each group."""
        groups = limited(groups, options, machine, self.block_bytes)
        num_blocks = options.cache.num_blocks or choose_num_blocks(
            spec, options, machine, groups=groups, block_bytes=self.block_bytes
        )
        if link is not None:
            num_blocks, groups = agreed(link, num_blocks, groups)
        self.num_blocks, self._groups = num_blocks, groups
        self.memory = self._memory_of(groups.num_blocks(num_blocks), self.states)
        name = layout_name(
            "cpu",
            spec,
            groups,
            dtype=named(dtypes).replace("auto", "fp16"),
            block_size=self.block_size,
        )
        form = KVImages(layout=name, block_bytes=tuple(self.block_bytes))
        self.images = BlockImages(self.memory.blocks, form)

    def memory_of_one(self, num_blocks: int) -> SequenceMemory:
        """Return memory of its own for one sequence; it is the caller's to release."""
        states = StateLayout(shapes=self.states.shapes, num_sequences=1, num_checkpoints=0)
        return self._memory_of([num_blocks] * len(self.block_bytes), states)

    def length_bytes(self) -> dict[str, int]:
        held = {"kv_cache": self._groups.length_bytes(self.num_blocks, self.block_bytes)}
        return held | ({"states": self.states.length_bytes} if self.states.shapes else {})

    def _memory_of(self, num_blocks: Sequence[int], states: StateLayout) -> SequenceMemory:
        blocks = KVCache(self._spec, self._groups, num_blocks, self.block_size, self._dtypes)
        return SequenceMemory(blocks, StatePool(states))
