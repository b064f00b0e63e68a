"""What kernels are told of each layer's attention: it follows from the spec alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.operations import is_attention
from zse.kernels.attention.context import takes_context
from zse.kernels.layout import HeadShape
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.kernels.layout import HeadPart
    from zse.models.layer_spec import AttentionSpec
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec


@record
class AttentionKind:
    """What decides how much memory and how many programs a layer's attention takes."""

    shape: HeadShape
    window: int
    """Tokens that a query sees, its own included; 0 for all."""


def attentions_of(spec: ModelSpec) -> Mapping[int, AttentionSpec]:
    """Return the attention of each layer that has one, by number."""
    mixers = {layer.index: layer.mixer for layer in spec.layers}
    return {index: mixer for index, mixer in mixers.items() if is_attention(mixer)}


def latent_attentions_of(spec: ModelSpec) -> Mapping[int, AttentionSpec]:
    """Return those of ``attentions_of`` that keep a latent in place of keys and values."""
    attentions = attentions_of(spec).items()
    return {index: each for index, each in attentions if each.latent is not None}


def kinds_of(spec: ModelSpec) -> Mapping[int, AttentionKind]:
    """Return the kind of each layer's attention that keeps keys and values, by number."""
    attentions = attentions_of(spec).items()
    return {index: kind_of(each) for index, each in attentions if each.latent is None}


def lines_shapes_of(spec: ModelSpec, target: str) -> Mapping[int, HeadShape]:
    """Return the heads of each layer whose prompts may be read over lines, by number.

    Each token sees all of its sequence up to itself, and nothing else weighs in.
    """
    attentions = attentions_of(spec).items()
    plain = {
        index: kind_of(each).shape
        for index, each in attentions
        if each.is_causal
        and not (each.latent is not None or each.window or each.softcap or each.sinks)
    }
    return {index: shape for index, shape in plain.items() if takes_context(shape, target)}


def kind_of(attention: AttentionSpec) -> AttentionKind:
    parts: list[HeadPart] = ["query"]
    if attention.is_gated:
        parts.append("gate")
    if attention.kv_of_layer is None:
        parts.append("key")
        if not attention.values_are_keys:
            parts.append("value")
    shape = HeadShape(
        num_heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        parts=tuple(parts),
    )
    return AttentionKind(shape=shape, window=attention.window or 0)


def ropes_of(spec: ModelSpec) -> tuple[RoPESpec, ...]:
    """Return the ropes of a model, each once."""
    ropes = (attention.rope for attention in attentions_of(spec).values())
    return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))


def norms_all_heads(attention: AttentionSpec) -> bool:
    """Whether all queries have one norm together, and so have all keys."""
    norm = attention.q_norm
    return norm is not None and norm.weight.shape[0] != attention.head_dim
