"""Keys and values: blocks that hold some tokens of several layers, resident once written."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.backends.kv_groups import kv_block_bytes
from zse.backends.kv_images import runs_of_blocks
from zse.backends.resident import cached_attentions, kv_layer_bytes
from zse.kernels.native import codes, structs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.models.spec import ModelSpec

DTYPES = {
    "auto": codes.CacheDtype.FP16,
    "fp16": codes.CacheDtype.FP16,
    "bf16": codes.CacheDtype.BF16,
    "fp32": codes.CacheDtype.FP32,
    "int8": codes.CacheDtype.INT8,
    "int4": codes.CacheDtype.INT4,
}


class KVCache:
    """A pool of blocks for each group of layers.

    The layers of a block lie side by side, so a sequence of few tokens touches few pages.

    Args:
        spec: The model.
        groups: The groups of its layers.
        num_blocks: Blocks of each group's pool.
        block_size: Tokens a block.
        dtypes: Type of each layer's keys and values.
    """

    def __init__(
        self,
        spec: ModelSpec,
        groups: KVGroups,
        num_blocks: Sequence[int],
        block_size: int,
        dtypes: Mapping[int, str],
    ) -> None:
        self.num_blocks = num_blocks[0]
        self.block_size = block_size
        self.windows = groups.pools_of(num_blocks)
        self._sizes = sizes = kv_block_bytes(spec, groups, block_size, dtypes)
        self._pages = [Pages(count * size) for count, size in zip(num_blocks, sizes, strict=True)]
        self.layers = (structs.Cache * len(spec.layers))()
        offsets = [0] * len(sizes)
        for index, attention in cached_attentions(spec).items():
            group = groups.of_layer[index]
            self.layers[index] = structs.Cache(
                data=self._pages[group].address + offsets[group],
                block_bytes=sizes[group],
                block_size=block_size,
                dtype=DTYPES[dtypes[index]],
                group=group,
            )
            offsets[group] += kv_layer_bytes(attention, block_size, dtypes[index])
        self.address = ctypes.addressof(self.layers)
        """Of one ``struct zse_cache`` a layer; that of a layer that keeps nothing is not read."""

    def empty(self, blocks: Sequence[Sequence[int]]) -> None:
        """Give back the memory of each group's blocks, ascending, whose content is of no use."""
        # An encoder, whose texts have caches of their own, tells of no group.
        for pages, size, free in zip(self._pages, self._sizes, blocks, strict=False):
            for first, end in runs_of(free):
                pages.empty(first * size, end * size)

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        """Copy blocks out, one behind the other."""
        for outside, inside in self._places(group, blocks):
            image[outside] = self._pages[group].view[inside]

    def write_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        """Copy blocks in."""
        for outside, inside in self._places(group, blocks):
            self._pages[group].view[inside] = image[outside]

    def _places(self, group: int, blocks: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        """Yield where runs of blocks lie in an image, and where in the pool."""
        size = self._sizes[group]
        for place, first, count in runs_of_blocks(blocks):
            outside = slice(place * size, (place + count) * size)
            yield outside, slice(first * size, (first + count) * size)

    def close(self) -> None:
        """Give the memory back; no step may use it afterwards."""
        for pages in self._pages:
            pages.close()


def runs_of(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of each run of ascending numbers that follow each other."""
    first = end = None
    for number in numbers:
        if number != end:
            if first is not None and end is not None:
                yield first, end
            first = number
        end = number + 1
    if first is not None and end is not None:
        yield first, end
