"""The configurations that files of random weights are made with."""

from __future__ import annotations

from typing import Any

from zse.models.well_known import WELL_KNOWN

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
