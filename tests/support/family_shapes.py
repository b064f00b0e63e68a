"""Tiny configurations: what a family's own keys are where others have none."""

from __future__ import annotations

from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
DELTA_MIXTURE: dict[str, Any] = {
    **DELTA,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-2,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "mscale": 0.5,
        "mscale_all_dim": 0.9,
        "original_max_position_embeddings": 64,
    },
}
FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_5": DELTA,
    "qwen3_5_moe": DELTA_MIXTURE,
    "qwen3_next": {**DELTA_MIXTURE, "linear_key_head_dim": 24, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96},
    "gpt_oss": {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 96,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
        "sliding_window": 9,
        "swiglu_limit": 0.3,
    },
    "glm4_moe": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
    },
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 48, "n_group": 4, "topk_group": 2},
    "smollm3": {"no_rope_layers": [1, 0], "pad_token_id": 0},
    "phi3": {"pad_token_id": 0, "partial_rotary_factor": 0.5},
    "olmo2": {"pad_token_id": 0},
    "olmo3": {
        "pad_token_id": 0,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma2": {"sliding_window": 9, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 48},
    "gemma3": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 48,
    },
    "gemma4": {
        "num_hidden_layers": 6,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 320,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "output_hidden_states": True,  # transformers cannot leave rows out where keys are shared
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "final_logit_softcapping": 5.0,
    },
    "glm4": {"pad_token_id": 0},
    "bert": {"num_key_value_heads": 4, "max_position_embeddings": 320, "pad_token_id": 0},
    "roberta": {"num_key_value_heads": 4, "max_position_embeddings": 322, "type_vocab_size": 1},
    "modernbert": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "max_position_embeddings": 320,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "local_attention": 12,
        "pad_token_id": 0,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "gpt2": {
        "n_embd": 128,
        "n_inner": 192,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "tie_word_embeddings": True,
    },
}
"""By the name of the family; those that are not here need nothing of their own."""
ENCODERS = frozenset({"bert", "modernbert", "roberta"})
"""Families that give vectors, not logits: ``tests/models/test_encoders.py``."""


def shape_of(family: str, **changes: Any) -> dict[str, Any]:
    """Return the values of a tiny configuration of a family."""
    return {**SHAPE, **FAMILY_SHAPES.get(family, {}), **changes}
