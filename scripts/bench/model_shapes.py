"""The configurations that files of random weights are made with."""

from __future__ import annotations

from typing import Any

from zse.models.well_known import WELL_KNOWN

GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "rope_theta": 150000.0,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 201088,
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: dict(config) for name, config in WELL_KNOWN.items()},
    # What people try first on a machine without a GPU.
    "qwen2.5-0.5b": {
        **WELL_KNOWN["qwen2.5-7b"],
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "tinyllama-1.1b": {
        **WELL_KNOWN["llama3-8b"],
        "hidden_size": 2048,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 5632,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    },
    # Experts in MXFP4, whatever is asked for.
    "gpt-oss-20b": GPT_OSS,
    "gpt-oss-120b": {**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    "tiny-gpt-oss": {
        **GPT_OSS,
        "hidden_size": 256,
        "intermediate_size": 320,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "num_local_experts": 6,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
    # Small enough for a test; every kind of tensor of the large ones.
    "tiny-gqa": {
        **WELL_KNOWN["qwen2.5-7b"],
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 640,
        "vocab_size": 2048,
        "max_position_embeddings": 4096,
    },
}
