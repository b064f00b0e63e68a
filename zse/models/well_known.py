"""The configurations of well-known models: what fits a machine, files of random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_QWEN: Mapping[str, Any] = {
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
_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def _shaped(
    common: Mapping[str, Any], hidden: int, layers: int, heads: int, kv_heads: int, wide: int
) -> dict[str, Any]:
    return {
        **common,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": wide,
    }


WELL_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-7b": _shaped(_QWEN, 3584, 28, 28, 4, 18944),
    "llama3-8b": _shaped(_LLAMA, 4096, 32, 32, 8, 14336),
    "qwen2.5-14b": _shaped(_QWEN, 5120, 48, 40, 8, 13824),
    "qwen2.5-32b": _shaped(_QWEN, 5120, 64, 40, 8, 27648),
    "llama3-70b": _shaped(_LLAMA, 8192, 80, 64, 8, 28672),
    "qwen2.5-72b": _shaped(_QWEN, 8192, 80, 64, 8, 29568),
}
"""As in their ``config.json``."""
