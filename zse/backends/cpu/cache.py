"""Keys and values: blocks that hold all layers of some tokens, resident once they are written."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.backends.resident import cached_attentions, kv_layer_bytes
from zse.kernels.native import structs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.models.spec import ModelSpec

DTYPES = {
    "auto": structs.CacheDtype.FP16,
    "fp16": structs.CacheDtype.FP16,
    "bf16": structs.CacheDtype.BF16,
    "fp32": structs.CacheDtype.FP32,
    "int8": structs.CacheDtype.INT8,
}


class KVCache:
    """A pool of blocks.

    The layers of a block lie side by side, so a sequence of few tokens touches few pages, and
    copying a block is one copy.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, kv_dtype: str) -> None:
        attentions = cached_attentions(spec)
        sizes = [kv_layer_bytes(one, block_size, kv_dtype) for one in attentions.values()]
        offsets = dict(zip(attentions, accumulate(sizes, initial=0), strict=False))
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.block_bytes = sum(sizes)
        self._pages = Pages(num_blocks * self.block_bytes)
        self.layers = (structs.Cache * len(spec.layers))(
            *(
                structs.Cache(
                    data=self._pages.address + offsets.get(layer.index, 0),
                    block_bytes=self.block_bytes,
                    block_size=block_size,
                    dtype=DTYPES[kv_dtype],
                )
                for layer in spec.layers
            )
        )
        self.address = ctypes.addressof(self.layers)
        """Of one ``struct zse_cache`` a layer; that of a layer that keeps nothing is not read."""

    def copy_block(self, source: int, destination: int) -> None:
        start, length_bytes = self._pages.address, self.block_bytes
        ctypes.memmove(
            start + destination * length_bytes, start + source * length_bytes, length_bytes
        )

    def empty(self, blocks: Sequence[int]) -> None:
        """Give back the memory of blocks, ascending, whose content is of no use."""
        for first, end in runs_of(blocks):
            self._pages.empty(first * self.block_bytes, end * self.block_bytes)

    def close(self) -> None:
        """Give the memory back; no step may use it afterwards."""
        self._pages.close()


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
