"""Key factors on a GPU: made of biases in the file, while its weights are on their way."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from zse.backends.gpu.weights import widened
from zse.backends.key_factors import key_factors
from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

    from zse.device.gpu import Gpu, Stream
    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec
    from zse.stream.shards import Cut
    from zse.stream.source import ByteSource


def read_key_factors(
    source: ByteSource,
    header: ZSEHeader,
    spec: ModelSpec,
    cuts: Mapping[str, Cut] | None = None,
) -> dict[int, array[float]]:
    """Read a file's biases and return the factors of layers whose keys have large constants.

    Of a bias that is cut, a rank has the pieces.
    """
    entries = {entry.name: entry for entry in header.tensors}

    def vector(bias: WeightSpec) -> tuple[float, ...]:
        entry = entries[bias.name]
        part = entry.part("data")
        raw = bytearray(part.length_bytes)
        source.read_into(part.offset_bytes, memoryview(raw))
        plain = bytes(raw) if entry.scheme is Scheme.FP32 else widened(bytes(raw), entry.scheme)
        numbers = struct.unpack(f"<{len(plain) // 4}f", plain)
        if (cut := (cuts or {}).get(bias.name)) is None:
            return numbers
        return tuple(each for at, count in cut.pieces for each in numbers[at : at + count])

    return key_factors(spec, vector)


class DeviceFactors:
    """The factors in device memory.

    Args:
        gpu: Where.
        factors: float32 [kv_heads, head_dim] by layer; layers may share one.
    """

    def __init__(self, gpu: Gpu, factors: Mapping[int, array[float]]) -> None:
        self._gpu = gpu
        self.factors = dict(factors)
        own = {id(values): values for values in factors.values()}
        self._raw = b"".join(values.tobytes() for values in own.values())
        self._block = gpu.allocate(len(self._raw)) if own else None
        first = {}
        address = self._block.address if self._block is not None else 0
        for key, values in own.items():
            first[key] = address
            address += values.itemsize * len(values)
        self.addresses = {layer: first[id(values)] for layer, values in factors.items()}
        """Where a layer's factors are, by number; a layer without any is absent."""

    def fill(self, stream: Stream) -> None:
        """Copy the factors to the device, and wait for them."""
        if self._block is None:
            return
        host = self._gpu.allocate_host(len(self._raw))
        try:
            host.view[: len(self._raw)] = self._raw
            self._gpu.copy_to_device(self._block.address, host.address, len(self._raw), stream)
            stream.synchronize()
        finally:
            host.free()
