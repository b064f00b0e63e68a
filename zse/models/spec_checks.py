"""Refuses models that cannot be: their numbers come from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.layer_spec import AttentionSpec

if TYPE_CHECKING:
    from zse.models.layer_spec import ExpertsSpec
    from zse.models.spec import ModelSpec

MOST_LAYERS = 1024
"""More than any model has; a file that claims more would be believed for gigabytes."""
MOST_EXPERTS = 4096


def check_spec(spec: ModelSpec) -> None:
    """Refuse what no model can have.

    Raises:
        UnsupportedModelError: A number has no meaning, or numbers do not fit together.
    """
    spare = (weight for group in spec.spare_groups() for weight in group.weights)
    for weight in (*spec.weights(), *spare):
        if min(weight.shape) < 1:
            raise UnsupportedModelError(f"{weight.name} has shape {list(weight.shape)}")
        if weight.packing is not None and weight.shape[1] % weight.packing.group_size:
            raise UnsupportedModelError(
                f"{weight.name} has rows of {weight.shape[1]} numbers in {weight.packing.scheme}; "
                f"expected a multiple of {weight.packing.group_size}"
            )
    for layer in spec.layers:
        if isinstance(layer.mixer, AttentionSpec):
            _check_attention(layer.mixer, f"layer {layer.index}")
        if layer.experts is not None:
            check_experts(layer.experts, f"layer {layer.index}")


def _check_attention(attention: AttentionSpec, where: str) -> None:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise UnsupportedModelError(
            f"{where}: {heads} query heads do not divide among {kv_heads} KV heads"
        )
    latent = attention.latent
    if latent is not None and (kv_heads != 1 or attention.rope is None or latent.key_dim < 1):
        raise UnsupportedModelError(
            f"{where}: heads of a latent have {latent.key_dim} columns that do not turn; expected "
            "at least one, some that turn, and one key that all heads share"
        )
    if attention.window is not None and attention.window < 1:
        raise UnsupportedModelError(
            f"{where}: sliding_window is {attention.window}; expected a number above 0"
        )


def check_experts(experts: ExpertsSpec, where: str = "the model") -> None:
    """Refuse a mixture whose numbers do not fit together, with an ``UnsupportedModelError``."""
    count, chosen, groups = experts.num_experts, experts.experts_per_token, experts.num_groups
    if not 1 <= chosen <= count <= MOST_EXPERTS:
        raise UnsupportedModelError(
            f"{where} chooses {chosen} of {count} experts; expected 1 to {MOST_EXPERTS} experts, "
            "and not more chosen than there are"
        )
    if groups < 1 or count % groups or not 1 <= experts.groups_per_token <= groups:
        raise UnsupportedModelError(
            f"{where} chooses {experts.groups_per_token} of {groups} groups of {count} experts; "
            "expected groups of as many experts each, and not more chosen than there are"
        )
    if chosen > count // groups * experts.groups_per_token:
        raise UnsupportedModelError(
            f"{where} chooses {chosen} experts, more than {experts.groups_per_token} groups have"
        )
