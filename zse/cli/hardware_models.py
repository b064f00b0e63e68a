"""Which well-known models fit into a memory, computed from their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from zse.engine.requirements import DEFAULT_CONTEXT, ModelFacts, estimate_memory
from zse.models.config import ModelConfig

SCHEMES = ("int4", "nf4", "int8", "bf16")
"""The smallest first."""


def _shape(
    family: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> ModelConfig:
    return ModelConfig(
        family=family,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position=8192,
        qkv_bias=family == "qwen2",
    )


WELL_KNOWN = {
    "qwen2.5-7b": _shape("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "llama3-8b": _shape("llama", 4096, 14336, 32, 32, 8, 128256),
    "qwen2.5-14b": _shape("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "qwen2.5-32b": _shape("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "llama3-70b": _shape("llama", 8192, 28672, 80, 64, 8, 128256),
    "qwen2.5-72b": _shape("qwen2", 8192, 29568, 80, 64, 8, 152064),
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What one model takes at one scheme, and whether a memory has it."""

    model: str
    quantization: str
    context_tokens: int
    weights_bytes: int
    kv_bytes: int
    total_bytes: int
    """Weights, keys and values, activations, the runtime."""
    fits: bool


def fits_in(free_bytes: int, *, on_gpu: bool) -> list[Fit]:
    """Return every well-known model at every scheme.

    Args:
        free_bytes: What may be used.
        on_gpu: Keys and values in bf16, as on a GPU; else in float32, as on a CPU.
    """
    found = []
    for model, config in WELL_KNOWN.items():
        for quantization in SCHEMES:
            facts = ModelFacts(config=config, stored_bytes=None)
            estimate = estimate_memory(facts, quantization, context_tokens=DEFAULT_CONTEXT)
            kv_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
            kv_bytes = kv_token * estimate.context_tokens * (2 if on_gpu else 4)
            total = estimate.weights_bytes + kv_bytes + estimate.overhead_bytes
            found.append(
                Fit(
                    model=model,
                    quantization=quantization,
                    context_tokens=estimate.context_tokens,
                    weights_bytes=estimate.weights_bytes,
                    kv_bytes=kv_bytes,
                    total_bytes=total,
                    fits=total <= free_bytes,
                )
            )
    return found
