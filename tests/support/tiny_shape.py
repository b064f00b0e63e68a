"""The smallest model that kernels of a GPU compute: what Triton's interpreter runs in seconds."""

from __future__ import annotations

TINY = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
}
