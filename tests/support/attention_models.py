"""Models whose attention has what only some families have, at head widths that GPUs take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from any_layers import attention, experts, layer, model

from zse.models.rope import RoPESpec

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec

NARROW, WIDE = (2, 1, 64), (1, 1, 128)
ROPE = RoPESpec(theta=1e4, rotary_dim=64)
PARTIAL = RoPESpec(theta=1e6, rotary_dim=32)
HEAD_NORMS = {"q_norm": 64, "k_norm": 64}
POST_NORMS = {"mixer_post_norm": True, "mlp_post_norm": True}
narrow = partial(attention, heads=NARROW, rope=ROPE)


def sinks() -> ModelSpec:
    """As gpt-oss: sinks, biases and a window."""
    return model([layer(0, partial(narrow, has_sinks=True, bias=True, window=3))])


def gates() -> ModelSpec:
    """As Qwen3.5: gated, heads that turn in part, one norm a head."""
    return model([layer(0, partial(narrow, is_gated=True, rope=PARTIAL, norms=HEAD_NORMS))])


def capped() -> ModelSpec:
    """As Gemma 2: capped scores and logits, norms of what is added."""
    own = partial(
        attention, heads=WIDE, rope=RoPESpec(theta=1e4, rotary_dim=128), softcap=2.0, window=3
    )
    return model([layer(0, own, **POST_NORMS)], softcap=3.0)


def mixed() -> ModelSpec:
    """As Gemma 4: heads of two shapes, normed values that are keys, another layer's keys."""
    windowed = partial(narrow, window=3, norms=HEAD_NORMS, value_norm_epsilon=1e-6)
    full = partial(
        attention, heads=WIDE, rope=PARTIAL, norms={"q_norm": 128, "k_norm": 128},
        values_are_keys=True, value_norm_epsilon=1e-6, scale=1.0,
    )  # fmt: skip
    reader = partial(attention, heads=WIDE, rope=PARTIAL, norms={"q_norm": 128}, kv_of_layer=1)
    common = {**POST_NORMS, "stream_scale": True}
    return model([layer(i, one, **common) for i, one in enumerate((windowed, full, reader))])


def beside() -> ModelSpec:
    """As Gemma 4 with experts beside a dense MLP: a norm of each, and one of both."""
    mixture = partial(experts, router_norm=True, expert_scale=True, post_norm=True)
    common = {**POST_NORMS, "stream_scale": True, "dense_post_norm": True}
    one = layer(0, partial(narrow, norms=HEAD_NORMS), experts=mixture, **common)
    return model([one, layer(1, narrow)])


def told() -> ModelSpec:
    """As Gemma 4 with per-layer embeddings."""
    common = {**POST_NORMS, "stream_scale": True, "told": 128}
    return model([layer(index, narrow, **common) for index in range(2)])


def bare() -> ModelSpec:
    """As OLMo 2: one norm for all heads, none of what layers read; and no positions."""
    own = partial(narrow, norms={"q_norm": 128, "k_norm": 64}, rope=None)
    return model([layer(0, own, mixer_norm=None, mlp_norm=None, **POST_NORMS)])
