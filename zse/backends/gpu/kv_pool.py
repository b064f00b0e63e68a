"""zKV on the device: where each layer's keys and values lie.

A layer holds keys ``[num_blocks, kv_heads, 32, head_dim]``, then values of the same shape, in
bfloat16; or both in int8, followed by their float16 scales ``[num_blocks, kv_heads, 32,
head_dim / 32]``. One more block than the engine knows of stands at the end: padding rows of a
captured step write there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.layout import BLOCK_TOKENS, SCALE_CHANNELS, PagedCache
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection

    from zse.device.gpu import Block, Gpu, Stream
    from zse.models.spec import ModelSpec

BLOCK_SIZE = BLOCK_TOKENS
_ALIGNMENT = 256


@record
class KVLayout:
    """Sizes of a cache, before any of it is allocated.

    Attributes:
        dtype: ``bf16`` or ``int8``.
        kept_layers: Layers that stay in bfloat16 whatever ``dtype`` says.
    """

    num_layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    kept_layers: frozenset[int] = frozenset()

    def dtype_of(self, layer: int) -> str:
        return "bf16" if layer in self.kept_layers else self.dtype

    def block_bytes(self) -> int:
        return sum(self._parts(layer, 1)[-1] for layer in range(self.num_layers))

    def layer_bytes(self, layer: int, num_blocks: int) -> int:
        """Return the bytes of one layer, each part aligned."""
        return self._parts(layer, num_blocks)[-1]

    def layer_at(self, layer: int, address: int, num_blocks: int) -> PagedCache:
        values, key_scales, value_scales, _ = self._parts(layer, num_blocks)
        scaled = self.dtype_of(layer) == "int8"
        return PagedCache(
            keys=address,
            values=address + values,
            key_scales=address + key_scales if scaled else 0,
            value_scales=address + value_scales if scaled else 0,
        )

    def _parts(self, layer: int, num_blocks: int) -> tuple[int, int, int, int]:
        """Return the offsets of values, key scales, value scales, and the end."""
        elements = num_blocks * self.kv_heads * BLOCK_SIZE * self.head_dim
        scaled = self.dtype_of(layer) == "int8"
        part = align_up(elements * (1 if scaled else 2), _ALIGNMENT)
        scales = align_up(elements // SCALE_CHANNELS * 2, _ALIGNMENT) if scaled else 0
        return part, 2 * part, 2 * part + scales, 2 * part + 2 * scales


def layout_for(spec: ModelSpec, dtype: str, kept_layers: Collection[int] = ()) -> KVLayout:
    return KVLayout(
        num_layers=len(spec.layers),
        kv_heads=spec.attention.num_kv_heads,
        head_dim=spec.attention.head_dim,
        dtype=dtype,
        kept_layers=frozenset(kept_layers),
    )


class KVPool:
    """The tensors of a cache of ``num_blocks`` blocks and the padding block behind them."""

    def __init__(self, gpu: Gpu, layout: KVLayout, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.layout = layout
        self._gpu = gpu
        count = num_blocks + 1
        sizes = [layout.layer_bytes(layer, count) for layer in range(layout.num_layers)]
        self._block: Block = gpu.allocate(sum(sizes))
        self.layers: list[PagedCache] = []
        address = self._block.address
        for layer, size in enumerate(sizes):
            self.layers.append(layout.layer_at(layer, address, count))
            address += size

    @property
    def length_bytes(self) -> int:
        return self._block.length_bytes

    def copy_block(self, source: int, destination: int, stream: Stream) -> None:
        layout = self.layout
        elements = layout.kv_heads * BLOCK_SIZE * layout.head_dim
        for cache in self.layers:
            size = elements * (1 if cache.quantized else 2)
            parts = [(cache.keys, size), (cache.values, size)]
            if cache.quantized:
                scale_bytes = elements // SCALE_CHANNELS * 2
                parts += [(cache.key_scales, scale_bytes), (cache.value_scales, scale_bytes)]
            for address, length in parts:
                self._gpu.copy_on_device(
                    address + destination * length, address + source * length, length, stream
                )

    def close(self) -> None:
        self._block.free()
