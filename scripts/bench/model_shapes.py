"""The configurations of well-known models, for files of random weights of their shapes."""

from __future__ import annotations

_QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def _qwen(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int) -> dict:
    return _QWEN | {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
    }


CONFIGS: dict[str, dict] = {
    "qwen2.5-7b": _qwen(3584, 28, 28, 4, 18944),
    "qwen2.5-14b": _qwen(5120, 48, 40, 8, 13824),
    "qwen2.5-32b": _qwen(5120, 64, 40, 8, 27648),
    "qwen2.5-72b": _qwen(8192, 80, 64, 8, 29568),
    "llama3-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    # Small enough for a test; every kind of tensor of the large ones.
    "tiny-gqa": _qwen(256, 3, 4, 2, 640) | {"vocab_size": 2048, "max_position_embeddings": 4096},
}
