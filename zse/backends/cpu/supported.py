"""Whether a CPU computes a model, and has the memory for it; looked at before anything is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.backends.cpu.described import ROTARY_REGISTERS, ropes_of
from zse.backends.operations import is_attention, refuse
from zse.backends.resident import cached_attentions, kept_heads
from zse.kernels.native.codes import MAX_HEAD_DIM, MAX_HEADS_A_GROUP, MAX_TAPS, MAX_VOCABULARY
from zse.units import memory_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.device.probe import DeviceInfo
    from zse.format.reader import ZSEReader
    from zse.models.layer_spec import AttentionSpec
    from zse.models.spec import ModelSpec

_LOG = logging.getLogger("zse.backends")


def check_supported(spec: ModelSpec) -> None:
    """Refuse a model that the CPU does not compute, with an ``UnsupportedModelError``."""
    refuse("a CPU", _obstacles(spec))


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


def _obstacles(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Return what no kernel computes, and what goes beyond the room that kernels have."""
    ropes = ropes_of(spec)
    if len(ropes) > len(ROTARY_REGISTERS):
        yield "the layers", f"{len(ropes)} kinds of rotation"
    cached = cached_attentions(spec)
    for layer in spec.layers:
        where, mixer = f"layer {layer.index}", layer.mixer
        if is_attention(mixer):
            yield from _attention_obstacles(where, mixer, cached)
            if mixer.is_causal == spec.is_encoder:
                yield where, "attention that does not fit its head"
        elif mixer.convolution_width > MAX_TAPS:
            yield (
                where,
                f"a convolution over {mixer.convolution_width} tokens, more than {MAX_TAPS}",
            )
    if spec.is_encoder == (spec.head.pooling == "none"):
        yield "the head", f"{spec.head.pooling} of its states to pool"
    if spec.vocab_size > MAX_VOCABULARY:
        yield "the head", f"{spec.vocab_size} tokens, more than {MAX_VOCABULARY}"


def _attention_obstacles(
    where: str, attention: AttentionSpec, cached: Mapping[int, AttentionSpec]
) -> Iterator[tuple[str, str]]:
    if not attention.is_causal and not _is_of_texts(attention):
        yield where, "attention to what follows, over keys that are not its own"
    widths = [attention.head_dim]
    if (latent := attention.latent) is not None:
        widths += [latent.key_dim, latent.value_dim]
    if max(widths) > MAX_HEAD_DIM:
        yield where, f"heads of {max(widths)} columns, more than {MAX_HEAD_DIM}"
    group = attention.num_heads // attention.num_kv_heads
    if group > MAX_HEADS_A_GROUP:
        yield where, f"{group} heads that share keys, more than {MAX_HEADS_A_GROUP}"
    if attention.kv_of_layer is not None:
        other = cached.get(attention.kv_of_layer)
        if other is None or kept_heads(other) != kept_heads(attention):
            yield where, f"keys of layer {attention.kv_of_layer}, which has none such"


def _is_of_texts(attention: AttentionSpec) -> bool:
    """Whether keys and values can be read where the step has them."""
    is_usual = attention.kv_of_layer is None and attention.latent is None
    return is_usual and not attention.values_are_keys and attention.value_norm_epsilon is None
