"""A small model file with every scheme, written with the standard library alone.

Tests read it, `scripts/update_golden.py` records its bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme, bytes_of_shape, parts_for
from zse.format.writer import ZSEWriter

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = {
    "config.json": b'{"model_type":"llama"}',
    "tokenizer.json": ('{"text":"' + "h\u00e9llo " * 700 + '"}').encode(),
    "chat_template.jinja": b"",
}
GROUPS: list[tuple[str, list[PlannedTensor]]] = [
    ("embed", [PlannedTensor(name="embed.weight", scheme=Scheme.BF16, shape=(12, 128))]),
    (
        "layers.0",
        [
            PlannedTensor(name="layers.0.attn_norm.weight", scheme=Scheme.FP16, shape=(128,)),
            PlannedTensor(
                name="layers.0.qkv.weight", scheme=Scheme.INT4, shape=(6, 256), group_size=128
            ),
            PlannedTensor(
                name="layers.0.o.weight", scheme=Scheme.NF4, shape=(5, 128), group_size=64
            ),
            PlannedTensor(
                name="layers.0.up.weight", scheme=Scheme.MXFP4, shape=(3, 64), group_size=32
            ),
            PlannedTensor(
                name="layers.0.gate.weight", scheme=Scheme.NL4, shape=(3, 64), group_size=16
            ),
            PlannedTensor(
                name="layers.0.k.weight", scheme=Scheme.INT3, shape=(3, 128), group_size=64
            ),
            PlannedTensor(
                name="layers.0.v.weight", scheme=Scheme.INT2, shape=(3, 64), group_size=32
            ),
        ],
    ),
    (
        "final",
        [
            PlannedTensor(name="final_norm.weight", scheme=Scheme.FP32, shape=(128,)),
            PlannedTensor(name="lm_head.weight", scheme=Scheme.INT8, shape=(12, 128)),
        ],
    ),
]
MODEL_CONFIG = {"family": "llama", "hidden_size": 128, "rms_norm_eps": 1e-05, "note": "\u00fc"}
PROVENANCE = {"source": "made for tests", "tool": "zse"}
_FORMATS = {"f32": "f", "f16": "e", "bf16": "H", "u8": "B", "i8": "b", "i32": "I"}


def part_bytes(tensor: PlannedTensor, role: str) -> bytes:
    """Return the bytes of one part: a fixed pattern, finite in every float type."""
    for found, dtype, shape in parts_for(tensor.scheme, tensor.shape, tensor.group_size):
        if found != role:
            continue
        count = bytes_of_shape(dtype, shape) // dtype.size_bytes
        key = sum(tensor.name.encode())
        if dtype.value in ("f32", "f16"):
            values: list[float] = [((key + 7 * i) % 61 - 30) / 16 for i in range(count)]
        elif dtype.value == "bf16":
            values = [0x3F00 + (key + 5 * i) % 255 for i in range(count)]
        elif dtype.value == "i32":
            values = [0x2000 + (key + i) % 99 | (0xB000 + i % 50) << 16 for i in range(count)]
        elif role == "exponent":
            values = [(key + 37 * i) % 253 for i in range(count)]
        else:
            low = -128 if dtype.value == "i8" else 0
            values = [(key + 37 * i) % 256 + low for i in range(count)]
        return struct.pack(f"<{count}{_FORMATS[dtype.value]}", *values)
    raise KeyError(role)


def write(path: Path) -> None:
    """Write the file under ``path``."""
    with ZSEWriter(
        path, architecture="llama", model_config=MODEL_CONFIG, provenance=PROVENANCE
    ) as writer:
        for name, data in SECTIONS.items():
            writer.add_section(name, data)
        writer.plan(GROUPS)
        fill(writer)


def fill(writer: ZSEWriter, *, stop_before: str = "") -> None:
    """Write every tensor of the groups that are due, up to the group ``stop_before``."""
    for group, tensors in GROUPS:
        if group == stop_before:
            return
        if group in writer.completed_groups:
            continue
        for tensor in tensors:
            for role, _, _ in parts_for(tensor.scheme, tensor.shape, tensor.group_size):
                writer.write_part(tensor.name, role, part_bytes(tensor, role))
