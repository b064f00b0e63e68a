"""Which well-known models fit into a memory, computed from their shapes."""

from __future__ import annotations

from zse.models.families import read_checkpoint
from zse.models.memory import DEFAULT_CONTEXT, ModelFacts, estimate_memory
from zse.models.well_known import WELL_KNOWN
from zse.records import record

SCHEMES = ("int4", "nf4", "int8", "bf16")
"""The smallest first."""


@record
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
    for model, settings in WELL_KNOWN.items():
        spec = read_checkpoint(settings)
        for quantization in SCHEMES:
            facts = ModelFacts(spec=spec)
            estimate = estimate_memory(
                facts, quantization, on_gpu=on_gpu, context_tokens=DEFAULT_CONTEXT
            )
            found.append(
                Fit(
                    model=model,
                    quantization=quantization,
                    context_tokens=estimate.context_tokens,
                    weights_bytes=estimate.weights_bytes,
                    kv_bytes=estimate.kv_bytes,
                    total_bytes=estimate.total_bytes,
                    fits=estimate.total_bytes <= free_bytes,
                )
            )
    return found
