"""What the kernels are told of a model's layers: rotations, attention, mixtures, activations."""

from __future__ import annotations

from array import array
from ctypes import pointer
from typing import TYPE_CHECKING, Any

from zse.backends.cpu.latent import latent_of
from zse.backends.operations import is_attention
from zse.kernels.native import codes, structs
from zse.kernels.native.codes import Register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.handles import DeltaWeights, ExpertWeights, LayerWeights
    from zse.models.layer_spec import AttentionSpec, ExpertsSpec, LinearAttentionSpec, MLPSpec
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec

ROTARY_REGISTERS = (Register.ROTARY, Register.ROTARY_OTHER)


class Rope:
    """Frequencies of one rotation, and the structure that points at them."""

    def __init__(self, spec: RoPESpec) -> None:
        self._frequencies = array("f", spec.inverse_frequencies())
        address, _ = self._frequencies.buffer_info()
        self.structure = structs.Rope(
            frequencies=address, rotary_dim=spec.rotary_dim, factor=spec.factor
        )


def ropes_of(spec: ModelSpec) -> dict[RoPESpec, None]:
    """Return the rotations that layers ask for, in the order in which they appear."""
    mixers = [layer.mixer for layer in spec.layers]
    ropes = (mixer.rope for mixer in mixers if is_attention(mixer))
    return dict.fromkeys(rope for rope in ropes if rope is not None)


def attention_of(
    spec: AttentionSpec,
    weights: LayerWeights,
    ropes: Sequence[RoPESpec],
    key_factors: array[float] | None = None,
    *,
    turns_keys: bool = False,
) -> structs.Attention:
    """Return the attention of a layer; ``ropes`` are the model's, in their registers' order.

    The factors of its keys must live as long as what is returned.
    """
    rope = spec.rope
    return structs.Attention(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=0 if rope is None else rope.rotary_dim,
        window=spec.window or 0,
        scale=spec.scale,
        softcap=spec.softcap or 0.0,
        rotary=ROTARY_REGISTERS[0 if rope is None else ropes.index(rope)],
        q_norm=_optional(weights.q_norm),
        k_norm=_optional(weights.k_norm),
        sinks=weights.sinks,
        value_epsilon=spec.value_norm_epsilon or 0.0,
        norms_together=norms_together(spec),
        is_gated=spec.is_gated,
        values_are_keys=spec.values_are_keys,
        shares_keys=spec.kv_of_layer is not None,
        sees_all=not spec.is_causal,
        latent=None if weights.latent is None else pointer(latent_of(spec, weights.latent)),
        key_factors=None if key_factors is None else key_factors.buffer_info()[0],
        turns_keys=turns_keys,
    )


def delta_of(spec: LinearAttentionSpec, weights: DeltaWeights) -> structs.Delta:
    """Return the linear attention of a layer."""
    return structs.Delta(
        num_key_heads=spec.num_key_heads,
        num_value_heads=spec.num_value_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        convolution_width=spec.convolution_width,
        convolution=weights.convolution,
        decay=weights.decay,
        step_bias=weights.step_bias,
        norm=pointer(weights.norm),
    )


def norms_together(spec: AttentionSpec) -> bool:
    """Whether the norms of heads are of all heads as one vector."""
    norms = [norm for norm in (spec.q_norm, spec.k_norm) if norm is not None]
    return any(norm.weight.shape[0] != spec.head_dim for norm in norms)


def experts_of(spec: ExpertsSpec, weights: ExpertWeights) -> structs.Experts:
    """Return how a mixture chooses."""
    return structs.Experts(
        num_experts=spec.num_experts,
        experts_per_token=spec.experts_per_token,
        scoring=codes.Scoring[spec.scoring.upper()],
        normalizes=spec.normalizes_weights,
        weight_scale=spec.weight_scale,
        num_groups=spec.num_groups,
        groups_per_token=spec.groups_per_token,
        scores_in_group=spec.scores_in_group,
        selection_bias=weights.selection_bias,
        expert_scales=weights.expert_scale,
    )


def activation_of(mlp: MLPSpec) -> dict[str, Any]:
    """Return the fields of an operation that say what stands between the matrices of an MLP."""
    return {
        "activation": codes.Activation[mlp.activation.upper()],
        "is_gated": mlp.is_gated,
        "limit": float("inf") if mlp.limit is None else mlp.limit,
    }


def _optional(norm: structs.Norm | None) -> Any:
    return None if norm is None else pointer(norm)
