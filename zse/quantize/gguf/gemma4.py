"""What a GGUF file of Gemma 4 says.

Layers differ, so settings have a number for each. What turns of a head where there is no window is
told by factors: 1 for the frequencies that are kept, 1e30 for those that stand still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from zse.quantize.gguf.settings import OwnSettings

_STILL = 1e30
_TABLE = "per_layer_token_embd.weight"
_HINT = "Convert the checkpoint in safetensors that it was made from."


def config_of_gemma4(own: OwnSettings) -> dict[str, Any]:
    """Return what its config.json says besides.

    Raises:
        CheckpointError: A setting is missing, or of the wrong kind.
        UnsupportedModelError: Layers differ in a way that Gemma 4's do not.
    """
    windowed = own.flags("attention.sliding_window_pattern")
    if not windowed:
        raise CheckpointError(
            f"{own.where} does not say which layers have a window "
            "(gemma4.attention.sliding_window_pattern)",
            hint=_HINT,
        )
    shared = own.integer("attention.shared_kv_layers", 0)
    config: dict[str, Any] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": own.integer("attention.sliding_window"),
        "layer_types": ["sliding_attention" if one else "full_attention" for one in windowed],
        "head_dim": own.integer("attention.key_length_swa"),
        "global_head_dim": own.integer("attention.key_length"),
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": _keys_are_values(own, windowed, shared),
        "hidden_size_per_layer_input": own.integer("embedding_length_per_layer_input", 0),
        "rope_parameters": _rotations(own),
        **_heads(own, windowed),
        **_widths(own, shared),
    }
    if own.has("final_logit_softcapping"):
        config["final_logit_softcapping"] = own.number("final_logit_softcapping")
    if _TABLE in own.header.tensors:
        config["vocab_size_per_layer_input"] = own.header.tensors[_TABLE].shape[0]
    if own.integer("expert_count", 0):
        config |= {
            "enable_moe_block": True,
            "num_experts": own.integer("expert_count"),
            "top_k_experts": own.integer("expert_used_count"),
            "moe_intermediate_size": own.integer("expert_feed_forward_length"),
        }
    return config


def _heads(own: OwnSettings, windowed: list[bool]) -> dict[str, int]:
    """Return the heads of keys: one number where there is a window, another where there is none."""
    told = own.integers("attention.head_count_kv")
    found: dict[str, int] = {}
    for name, kind in (("num_key_value_heads", True), ("num_global_key_value_heads", False)):
        counts = {count for count, one in zip(told, windowed, strict=True) if one is kind}
        if len(counts) > 1:
            raise _differing(own, "attention.head_count_kv", told)
        found |= dict.fromkeys([name], *counts) if counts else {}
    return found


def _widths(own: OwnSettings, shared: int) -> dict[str, Any]:
    """Return the width of an MLP, which layers without keys of their own may have twice."""
    told = own.integers("feed_forward_length")
    first, last = told[: len(told) - shared], told[len(told) - shared :]
    if not first or len(set(first)) > 1 or len(set(last)) > 1:
        raise _differing(own, "feed_forward_length", told)
    is_wide = bool(last) and last[0] == 2 * first[0]
    if last and not is_wide and last[0] != first[0]:
        raise _differing(own, "feed_forward_length", told)
    return {"intermediate_size": first[0], "use_double_wide_mlp": is_wide}


def _differing(own: OwnSettings, name: str, told: list[int]) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{own.where}: gemma4.{name} is {str(told)[:100]}, which is no pattern of Gemma 4",
        hint=_HINT,
    )


def _keys_are_values(own: OwnSettings, windowed: list[bool], shared: int) -> bool:
    own_keys = [index for index, one in enumerate(windowed) if not one][:1]
    return any(
        index < len(windowed) - shared and f"blk.{index}.attn_v.weight" not in own.header.tensors
        for index in own_keys
    )


def _rotations(own: OwnSettings) -> dict[str, dict[str, Any]]:
    turning = own.integer("rope.dimension_count_swa", own.integer("attention.key_length_swa"))
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": own.number("rope.freq_base", 1e6),
            "partial_rotary_factor": _turning_share(own),
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": own.number("rope.freq_base_swa", 1e4),
            "partial_rotary_factor": turning / max(own.integer("attention.key_length_swa"), 1),
        },
    }


def _turning_share(own: OwnSettings) -> float:
    """Return the part of the frequencies that turn, where there is no window."""
    factors = own.rotary_factors
    if factors is None:
        return 1.0
    kept = sum(factor == 1 for factor in factors)
    still = [factor >= 0.99 * _STILL for factor in factors[kept:]]
    if not kept or 2 * len(factors) != own.integer("attention.key_length") or not all(still):
        raise UnsupportedModelError(
            f"{own.where}: rope_freqs are no factors of Gemma 4: expected "
            f"{own.integer('attention.key_length') // 2}, ones and then {_STILL:g}",
            hint=_HINT,
        )
    return kept / len(factors)
