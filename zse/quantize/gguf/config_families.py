"""What a family's config.json says besides what all do, out of a GGUF file's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.gguf.gemma4 import config_of_gemma4

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.quantize.gguf.settings import OwnSettings


def _mixture(own: OwnSettings) -> dict[str, Any]:
    width = own.integer("expert_feed_forward_length", own.integer("feed_forward_length"))
    return {
        "num_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(own: OwnSettings) -> dict[str, Any]:
    return {
        **_mixture(own),
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": _rows_of(own, "blk.0.ffn_up_shexp.weight"),
    }


def _gemma(own: OwnSettings, *, largest_layers: int) -> dict[str, Any]:
    """Gemma's queries are scaled by the width of a head, in the largest by that of all."""
    heads = own.integer("attention.head_count")
    width = own.integer("attention.key_length")
    if own.integer("block_count") == largest_layers:
        width = own.integer("embedding_length") // heads
    return {
        "head_dim": own.integer("attention.key_length"),
        "query_pre_attn_scalar": width,
        "sliding_window": own.integer("attention.sliding_window"),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(own: OwnSettings) -> dict[str, Any]:
    return {
        **_gemma(own, largest_layers=46),
        "attn_logit_softcapping": own.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": own.number("final_logit_softcapping", 30.0),
    }


def _gemma3(own: OwnSettings) -> dict[str, Any]:
    pattern = 6
    return {
        **_gemma(own, largest_layers=62),
        "rope_local_base_freq": own.number("rope.freq_base_swa", 10000.0),
        "layer_types": [
            "sliding_attention" if (index + 1) % pattern else "full_attention"
            for index in range(own.integer("block_count"))
        ],
    }


def _granite(own: OwnSettings) -> dict[str, Any]:
    names = {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    }
    return {ours: own.number(theirs) for theirs, ours in names.items() if own.has(theirs)}


def _gpt2(own: OwnSettings) -> dict[str, Any]:
    return {
        "n_embd": own.integer("embedding_length"),
        "n_head": own.integer("attention.head_count"),
        "n_layer": own.integer("block_count"),
        "n_inner": own.integer("feed_forward_length"),
        "n_positions": own.integer("context_length"),
        "layer_norm_epsilon": own.number("attention.layer_norm_epsilon"),
    }


def _windows(own: OwnSettings, every: int) -> dict[str, Any]:
    """Return the window, and which layers have it: all but each of ``every`` if it is not told."""
    count = own.integer("block_count")
    told = own.flags("attention.sliding_window_pattern")
    has_window = told or [(index + 1) % every != 0 for index in range(count)]
    return {
        "sliding_window": own.integer("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if windowed else "full_attention" for windowed in has_window
        ],
    }


def _olmo3(own: OwnSettings) -> dict[str, Any]:
    return _windows(own, every=4)


def _gpt_oss(own: OwnSettings) -> dict[str, Any]:
    """Every other layer has the window; the numbers that no file tells are those of all models."""
    width = own.integer("expert_feed_forward_length", own.integer("feed_forward_length"))
    config: dict[str, Any] = {
        "num_local_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
        "intermediate_size": width,
        "head_dim": own.integer("attention.key_length"),
        "sliding_window": own.integer("attention.sliding_window"),
        "attention_bias": True,
    }
    experts = own.header.tensors.get("blk.0.ffn_down_exps.weight")
    if experts is not None and experts.type.name == "MXFP4":
        config["quantization_config"] = {"quant_method": "mxfp4"}
    return config | _yarn(own, truncate=False)


def _yarn(own: OwnSettings, **rest: Any) -> dict[str, Any]:
    """Return how positions are stretched, where YaRN does so, with what a family says besides."""
    if own.text("rope.scaling.type", "none") != "yarn":
        return {}
    scaling = {
        "rope_type": "yarn",
        "factor": own.number("rope.scaling.factor"),
        "beta_fast": own.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": own.number("rope.scaling.yarn_beta_slow", 1.0),
        "original_max_position_embeddings": own.integer("rope.scaling.original_context_length"),
    }
    return {"rope_scaling": {**scaling, **rest}}


def _latent(own: OwnSettings) -> dict[str, Any]:
    """Newer files tell heads as if there were one, as wide as what is kept; older ones as made."""
    turning = own.integer("rope.dimension_count")
    keys = own.integer("attention.key_length_mla", own.integer("attention.key_length"))
    scale = 1.0
    if own.has("rope.scaling.yarn_log_multiplier"):  # of models whose two scales are one
        scale = round(own.number("rope.scaling.yarn_log_multiplier") / 0.1, 6)
    has_rank = own.has("attention.q_lora_rank")
    return {
        "num_key_value_heads": own.integer("attention.head_count"),
        "head_dim": turning,
        "q_lora_rank": own.integer("attention.q_lora_rank") if has_rank else None,
        "kv_lora_rank": own.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": keys - turning,
        "qk_rope_head_dim": turning,
        "v_head_dim": own.integer(
            "attention.value_length_mla", own.integer("attention.value_length")
        ),
        "n_routed_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
        "moe_intermediate_size": own.integer("expert_feed_forward_length"),
        "n_shared_experts": own.integer("expert_shared_count"),
        "first_k_dense_replace": own.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": own.number("expert_weights_scale", 1.0),
        **_yarn(own, mscale=scale, mscale_all_dim=scale),
    }


def _deepseek2(own: OwnSettings) -> dict[str, Any]:
    groups = own.integer("expert_group_count", 1)
    return {
        **_latent(own),
        "norm_topk_prob": own.flag("expert_weights_norm", default=False),
        "topk_method": "group_limited_greedy" if groups > 1 else "greedy",
        "n_group": groups,
        "topk_group": own.integer("expert_group_used_count", 1),
    }


def _deepseek3(own: OwnSettings) -> dict[str, Any]:
    """Older files tell no groups: DeepSeek-V3, which has 256 experts, has eight."""
    groups = (8, 4) if own.integer("expert_count") == 256 else (1, 1)
    return {
        **_latent(own),
        "norm_topk_prob": own.flag("expert_weights_norm", default=True),
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "n_group": own.integer("expert_group_count", groups[0]),
        "topk_group": own.integer("expert_group_used_count", groups[1]),
        "num_nextn_predict_layers": 0,  # which the converter leaves out
    }


def _partial_rotary(own: OwnSettings) -> dict[str, Any]:
    heads = own.integer("attention.head_count")
    width = own.integer("attention.key_length", own.integer("embedding_length") // max(heads, 1))
    turning = own.integer("rope.dimension_count", width // 2)
    return {"partial_rotary_factor": turning / max(width, 1)}


def _glm4_moe(own: OwnSettings) -> dict[str, Any]:
    guesses = own.integer("nextn_predict_layers", 0)
    return {
        **_partial_rotary(own),
        "n_routed_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
        "moe_intermediate_size": own.integer("expert_feed_forward_length"),
        "n_shared_experts": own.integer("expert_shared_count", 1),
        "first_k_dense_replace": own.integer("leading_dense_block_count", 1),
        "routed_scaling_factor": own.number("expert_weights_scale", 1.0),
        "norm_topk_prob": own.flag("expert_weights_norm", default=True),
        "n_group": own.integer("expert_group_count", 1),
        "topk_group": own.integer("expert_group_used_count", 1),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in own.header.tensors,
        "num_nextn_predict_layers": guesses,
    }


def _hybrid(own: OwnSettings) -> dict[str, Any]:
    values = own.integer("ssm.time_step_rank")
    return {
        **_partial_rotary(own),
        "head_dim": own.integer("attention.key_length"),
        "full_attention_interval": own.integer("full_attention_interval", 4),
        "linear_conv_kernel_dim": own.integer("ssm.conv_kernel"),
        "linear_key_head_dim": own.integer("ssm.state_size"),
        "linear_num_key_heads": own.integer("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": own.integer("ssm.inner_size") // max(values, 1),
        "attention_bias": False,
        "mtp_num_hidden_layers": own.integer("nextn_predict_layers", 0),
    }


def _routed_hybrid(own: OwnSettings) -> dict[str, Any]:
    return {
        **_mixture(own),
        "shared_expert_intermediate_size": _rows_of(own, "blk.0.ffn_up_shexp.weight"),
    }


def _bert(own: OwnSettings) -> dict[str, Any]:
    """RoBERTa's files have the same name; their tables of positions begin elsewhere."""
    if (kind := own.tokenizer) not in (None, "bert"):
        raise UnsupportedModelError(
            f"{own.where} is an encoder with a tokenizer of kind {str(kind)[:50]!r}, as RoBERTa's; "
            "from GGUF only those of BERT itself are read",
            hint="Convert the checkpoint in safetensors that it was made from.",
        )
    return {
        "hidden_act": "gelu",
        "layer_norm_eps": own.number("attention.layer_norm_epsilon"),
        "max_position_embeddings": _rows_of(own, "position_embd.weight"),
        "type_vocab_size": _rows_of(own, "token_types.weight"),
    }


def _rows_of(own: OwnSettings, name: str) -> int:
    if name not in own.header.tensors:
        raise CheckpointError(f"{own.where} has no tensor {name}")
    return own.header.tensors[name].shape[0]


OWN_CONFIGS: Mapping[str, Callable[[OwnSettings], dict[str, Any]]] = {
    "mixtral": lambda own: {
        "num_local_experts": own.integer("expert_count"),
        "num_experts_per_tok": own.integer("expert_used_count"),
    },
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": lambda own: {**_mixture(own), "norm_topk_prob": True},
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": config_of_gemma4,
    "smollm3": lambda _own: {"no_rope_layer_interval": 4},
    "granite": _granite,
    "starcoder2": lambda own: {
        "norm_epsilon": own.number("attention.layer_norm_epsilon"),
        "use_bias": "blk.0.ffn_up.bias" in own.header.tensors,
    },
    "gpt2": _gpt2,
    "olmo3": _olmo3,
    "gpt_oss": _gpt_oss,
    "glm4": _partial_rotary,
    "glm4_moe": _glm4_moe,
    "bert": _bert,
    "deepseek_v2": _deepseek2,
    "deepseek_v3": _deepseek3,
    "qwen3_next": lambda own: {**_hybrid(own), **_routed_hybrid(own), "norm_topk_prob": True},
    "qwen3_5": _hybrid,
    "qwen3_5_moe": lambda own: {**_hybrid(own), **_routed_hybrid(own)},
}
"""What a family's config.json has besides, by model type."""
