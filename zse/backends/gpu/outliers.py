"""Which layers keep their keys in 16 bits although the cache is int8: read from the key biases."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from zse.backends.gpu.weights import widened
from zse.backends.resident import cached_attentions
from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec
    from zse.stream.source import ByteSource


OUTLIER_RATIO = 5.0


def outlier_layers(source: ByteSource, header: ZSEHeader, spec: ModelSpec) -> set[int]:
    """Read from a file which layers have a key bias far larger than that of the others."""
    entries = {entry.name: entry for entry in header.tensors}
    norms = {}
    for index, attention in cached_attentions(spec).items():
        bias = attention.qkv.bias
        if bias is None or attention.latent is not None:  # whose norm comes behind the bias
            return set()
        first = attention.query_columns * (1 + attention.is_gated)
        count = attention.kv_columns
        entry = entries[bias.name]
        part = entry.part("data")
        size = part.dtype.size_bytes
        raw = bytearray(count * size)
        source.read_into(part.offset_bytes + first * size, memoryview(raw))
        plain = bytes(raw) if entry.scheme is Scheme.FP32 else widened(bytes(raw), entry.scheme)
        norms[index] = math.hypot(*struct.unpack(f"<{count}f", plain))
    return kv_layers_kept_in_16_bits(norms)


def kv_layers_kept_in_16_bits(norms: Mapping[int, float]) -> set[int]:
    """Return the layers, by number, whose norm of the key bias is far above that of the others.

    Some models (Qwen2.5: the first and the last layer) carry huge constants in a few key channels.
    Beside them, 8 bits leave nothing of the rest. A model without biases has no norms.
    """
    if not norms:
        return set()
    # By hand: ``statistics`` brings decimal numbers and random ones into every start.
    ordered, half = sorted(norms.values()), len(norms) // 2
    limit = OUTLIER_RATIO * (ordered[half] + ordered[~half]) / 2
    return {layer for layer, norm in norms.items() if norm > limit}
