"""zKV on the device: where each layer's keys and values lie.

A layer holds keys ``[num_blocks, kv_heads, 32, head_dim]``, then values of the same shape, in
bfloat16; or both in int8, followed by their float16 scales ``[num_blocks, kv_heads, 32,
head_dim / 32]``; or both in four bits, two columns a byte, followed by scales of a byte ``[...,
head_dim / 16]``, which are as many bytes. Where a latent is kept it is the key, and there are no
values. Layers with a window have fewer blocks than those that see everything
(``zse.backends.kv_groups``). One more block than the engine knows of stands at the end: padding
rows of a captured step write there, and tables name it where a window has moved on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.heads import attentions_of
from zse.backends.kv_dtypes import dtypes_of
from zse.kernels.layout import BLOCK_TOKENS, SCALE_CHANNELS, PagedCache
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.device.gpu import Block, Gpu, Stream
    from zse.models.spec import ModelSpec

BLOCK_SIZE = BLOCK_TOKENS
_ALIGNMENT = 256


@record
class LayerKV:
    """How one layer keeps keys and values."""

    kv_heads: int
    head_dim: int
    dtype: str
    """``bf16``, ``int8`` or ``int4``."""
    has_values: bool = True
    """False: they are columns of the keys."""

    @property
    def bits(self) -> int:
        """Bits of a number, without its scale."""
        return {"bf16": 16, "int8": 8, "int4": 4}[self.dtype]

    def parts(self, num_blocks: int) -> tuple[int, int, int, int]:
        """Return the offsets of values, key scales, value scales, and the end, each aligned."""
        elements = num_blocks * self.kv_heads * BLOCK_SIZE * self.head_dim
        scaled = self.dtype != "bf16"
        part = align_up(elements * self.bits // 8, _ALIGNMENT)
        scales = align_up(elements // SCALE_CHANNELS * 2, _ALIGNMENT) if scaled else 0
        tensors = 1 + self.has_values
        end = tensors * (part + scales)
        return part, tensors * part, end - scales, end

    def at(self, address: int, num_blocks: int) -> PagedCache:
        values, key_scales, value_scales, _ = self.parts(num_blocks)
        scaled = self.dtype != "bf16"
        return PagedCache(
            keys=address,
            values=address + values if self.has_values else 0,
            key_scales=address + key_scales if scaled else 0,
            value_scales=address + value_scales if scaled and self.has_values else 0,
            is_narrow=self.dtype == "int4",
        )

    def pieces(self, cache: PagedCache) -> Iterator[tuple[int, int]]:
        """Yield the address of each part of a cache, and the bytes of a block in it."""
        elements = self.kv_heads * BLOCK_SIZE * self.head_dim
        tensors = 1 + self.has_values
        for address in (cache.keys, cache.values)[:tensors]:
            yield address, elements * self.bits // 8
        if cache.quantized:
            for address in (cache.key_scales, cache.value_scales)[:tensors]:
                yield address, elements // SCALE_CHANNELS * 2


@record
class KVLayout:
    """Sizes of a cache, before any of it is allocated."""

    layers: Mapping[int, LayerKV]
    """Layers that keep keys and values, by number."""
    readers: Mapping[int, int]
    """Layers that read those of another one, or write where it did, and of which."""
    groups: KVGroups
    """Which layers keep the same tokens."""

    def block_bytes(self) -> list[int]:
        """Return the bytes of a block of each group."""
        sizes = [0] * (1 + len(self.groups.windows))
        for index, layer in self.layers.items():
            sizes[self.groups.of_layer[index]] += layer.parts(1)[-1]
        return sizes


def layout_for(
    spec: ModelSpec,
    dtype: str,
    groups: KVGroups,
    factors: Mapping[int, array[float]] | None = None,
) -> KVLayout:
    """Return the layout of a model's cache.

    Args:
        dtype: ``bf16``, ``int8`` or ``int4``.
        groups: The groups of its layers.
        factors: Of keys, by layer, where the file's biases were read.

    Raises:
        UnsupportedModelError: A layer is not kept in four bits.
    """
    dtypes = dtypes_of(spec, dtype, factors)
    layers: dict[int, LayerKV] = {}
    readers: dict[int, int] = {}
    for index, attention in attentions_of(spec).items():
        if attention.kv_of_layer is not None:
            readers[index] = attention.kv_of_layer
            continue
        if not attention.is_causal and layers:
            readers[index] = next(iter(layers))  # which whole texts have done with by then
            continue
        layers[index] = LayerKV(
            kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            dtype=dtypes.get(index, dtype),
            has_values=attention.latent is None,
        )
    return KVLayout(layers=layers, readers=readers, groups=groups)


class KVPool:
    """The tensors of a cache of some blocks for each group, and the padding block behind them."""

    def __init__(self, gpu: Gpu, layout: KVLayout, num_blocks: Sequence[int]) -> None:
        self.num_blocks = num_blocks[0]
        self.windows = layout.groups.pools_of(num_blocks)
        self.layout = layout
        self._gpu = gpu
        counts = {index: num_blocks[layout.groups.of_layer[index]] + 1 for index in layout.layers}
        parts = {index: layer.parts(counts[index]) for index, layer in layout.layers.items()}
        self._block: Block = gpu.allocate(sum(each[-1] for each in parts.values()))
        self.layers: dict[int, PagedCache] = {}
        """Where each layer reads, by number."""
        self.group_of = dict(layout.groups.of_layer)
        """Whose table of blocks each layer reads by, by number."""
        address = self._block.address
        for index, layer in layout.layers.items():
            self.layers[index] = layer.at(address, counts[index])
            address += parts[index][-1]
        for index, other in layout.readers.items():
            self.layers[index] = self.layers[other]
            self.group_of[index] = self.group_of[other]

    @property
    def length_bytes(self) -> int:
        return self._block.length_bytes

    def clear_unseen(self, stream: Stream) -> None:
        """Write zeros where tables point behind a window: a tile of keys may begin there."""
        for index, layer in self.layout.layers.items():
            if group := self.group_of[index]:
                block = self.windows[group - 1].num_blocks
                for address, length in layer.pieces(self.layers[index]):
                    self._gpu.fill(address + block * length, 0, length, stream)

    def close(self) -> None:
        self._block.free()
