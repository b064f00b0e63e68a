"""Which layers keep their keys in 16 bits although the cache is int8: read from the key biases."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from zse.backends.gpu.weights import widened
from zse.format.schemes import Scheme
from zse.kernels.attention.outliers import kv_layers_kept_in_16_bits

if TYPE_CHECKING:
    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec
    from zse.stream.source import ByteSource


def outlier_layers(source: ByteSource, header: ZSEHeader, spec: ModelSpec) -> set[int]:
    """Return the layers whose key bias is far larger than that of the others.

    Args:
        source: The file's bytes.
        header: Its header.
        spec: The model.
    """
    entries = {entry.name: entry for entry in header.tensors}
    attention = spec.attention
    first = attention.num_heads * attention.head_dim
    count = attention.num_kv_heads * attention.head_dim
    norms = []
    for layer in range(len(spec.layers)):
        entry = entries.get(f"layers.{layer}.qkv.bias")
        if entry is None:
            return set()
        part = entry.part("data")
        size = part.dtype.size_bytes
        raw = bytearray(count * size)
        source.read_into(part.offset_bytes + first * size, memoryview(raw))
        plain = bytes(raw) if entry.scheme is Scheme.FP32 else widened(bytes(raw), entry.scheme)
        norms.append(math.hypot(*struct.unpack(f"<{count}f", plain)))
    return kv_layers_kept_in_16_bits(norms)
