"""What well-known models take at every scheme, computed from their shapes."""

from __future__ import annotations

from zse.models.families import read_checkpoint
from zse.models.memory import DEFAULT_CONTEXT, MemoryEstimate, ModelFacts, estimate_memory
from zse.models.well_known import WELL_KNOWN

SCHEMES = ("int4", "nf4", "int8", "bf16")
"""The smallest first."""


def well_known_estimates(*, on_gpu: bool) -> dict[tuple[str, str], MemoryEstimate]:
    """Return what every well-known model takes, by its name and scheme.

    Args:
        on_gpu: Keys and values in bf16, as on a GPU; else in float32, as on a CPU.
    """
    specs = {model: read_checkpoint(settings) for model, settings in WELL_KNOWN.items()}
    return {
        (model, scheme): estimate_memory(
            ModelFacts(spec=spec), scheme, on_gpu=on_gpu, context_tokens=DEFAULT_CONTEXT
        )
        for model, spec in specs.items()
        for scheme in SCHEMES
    }
