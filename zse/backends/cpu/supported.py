"""Whether a CPU computes a model, and has the memory for it; looked at before anything is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.backends.cpu.program import ROTARY_REGISTERS, ropes_of
from zse.backends.operations import obstacles, refuse
from zse.kernels.native.structs import MAX_HEAD_DIM, MAX_HEADS_A_GROUP, MAX_VOCABULARY
from zse.units import memory_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.probe import DeviceInfo
    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec

_LOG = logging.getLogger("zse.backends")


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that the CPU does not compute, with an ``UnsupportedModelError``."""
    refuse("a CPU", obstacles(spec))
    refuse("a CPU", _own_obstacles(spec))


def warn_of_size(reader: ZSEReader, machine: DeviceInfo) -> None:
    """Say so where a file does not fit into memory: its pages are then read again for each step."""
    weight_bytes = sum(entry.length_bytes for entry in reader.header.tensors)
    if weight_bytes > machine.total_memory_bytes:
        _LOG.warning(
            "the weights of %s take %s and this machine has %s of memory: every token reads from "
            "the disk what does not fit, which takes seconds",
            reader.path,
            memory_text(weight_bytes),
            memory_text(machine.total_memory_bytes),
        )


def _own_obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Return what goes beyond the room that the kernels have."""
    ropes = ropes_of(spec)
    if len(ropes) > len(ROTARY_REGISTERS):
        yield "the layers", f"{len(ropes)} kinds of rotation"
    heads = spec.attention
    if heads.head_dim > MAX_HEAD_DIM:
        yield "the layers", f"heads of {heads.head_dim} columns, more than {MAX_HEAD_DIM}"
    group = heads.num_heads // heads.num_kv_heads
    if group > MAX_HEADS_A_GROUP:
        yield "the layers", f"{group} heads that share keys, more than {MAX_HEADS_A_GROUP}"
    if spec.vocab_size > MAX_VOCABULARY:
        yield "the head", f"{spec.vocab_size} tokens, more than {MAX_VOCABULARY}"
