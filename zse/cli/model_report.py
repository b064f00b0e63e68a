"""What `zse info` and `zse models` say of a model: its shape, and the memory that it takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from zse.cli.titled_tables import Table, print_tables
from zse.device.known_gpus import smallest_gpu
from zse.models.layer_spec import AttentionSpec
from zse.models.memory import DEFAULT_CONTEXT, estimates_of
from zse.models.rank_memory import fewest_ranks
from zse.models.streaming_memory import least_streaming_bytes
from zse.units import GIB, memory_text

if TYPE_CHECKING:
    from zse.models.memory import MemoryEstimate, ModelFacts

_LONG_CONTEXT = 32768
_GPU_SIZES_GIB = (24, 80)
"""Of which is told how many a model needs together (``--tensor-parallel``)."""
NO_GPU = "none alone"
"""Where not even the largest GPU holds a model."""


def describe_model(
    name: str, facts: ModelFacts, max_context: int = 0, kv_dtype: str = "auto"
) -> dict[str, Any]:
    """Return what is known of a model, as JSON values; sizes are in bytes.

    Args:
        name: What the user calls it.
        facts: What is known of it.
        max_context: Tokens to count memory for; 0 means a short, a long and the longest context.
        kv_dtype: Type of the cached keys and values.
    """
    spec = facts.spec
    mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    return {
        "model": name,
        "family": spec.family,
        "parameters": facts.num_parameters,
        "layers": len(spec.layers),
        "hidden_size": spec.hidden_size,
        "attention_heads": max((mixer.num_heads for mixer in mixers), default=0),
        "kv_heads": max((mixer.num_kv_heads for mixer in mixers), default=0),
        "head_size": max((mixer.head_dim for mixer in mixers), default=0),
        "vocabulary": spec.vocab_size,
        "max_context": spec.max_position,
        "stored_as": facts.stored_quantization or facts.plain_quantization,
        "memory": [
            _describe_estimate(facts, on_gpu, on_cpu)
            for context in _contexts(spec.max_position, max_context)
            for on_gpu, on_cpu in zip(
                estimates_of(facts, on_gpu=True, context_tokens=context, kv_dtype=kv_dtype),
                estimates_of(facts, on_gpu=False, context_tokens=context, kv_dtype=kv_dtype),
                strict=True,
            )
        ],
    }


def show_model(report: dict[str, Any], *, as_json: bool) -> None:
    """Print what ``describe_model`` returned, and what was added to it."""
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else value)
        for name, value in report.items()
        if name != "memory"
    ]
    memory = [
        (
            one["quantization"],
            f"{one['context_tokens']:,}",
            memory_text(one["weights_bytes"]),
            memory_text(one["kv_bytes"]),
            memory_text(one["total_bytes"]),
            one["smallest_gpu"] or NO_GPU,
            _counts(one["gpus_needed"]),
            memory_text(one["streaming_bytes"]),
            memory_text(one["cpu_bytes"]),
        )
        for one in report["memory"]
    ]
    sizes = " / ".join(map(str, _GPU_SIZES_GIB))
    columns = (
        *("scheme", "context", "weights", "kv cache", "gpu memory", "smallest gpu"),
        *(f"gpus of {sizes} GiB", "streaming from", "on a cpu"),
    )
    print_tables(
        [
            Table(title="model", columns=("field", "value"), rows=rows),
            Table(title="memory", columns=columns, rows=memory),
        ]
    )


def gpu_name(estimate: MemoryEstimate) -> str | None:
    """Return the smallest GPU that holds a model; None where not even the largest does."""
    gpu = smallest_gpu(estimate.total_bytes)
    return gpu.name if gpu else None


def _describe_estimate(
    facts: ModelFacts, on_gpu: MemoryEstimate, on_cpu: MemoryEstimate
) -> dict[str, Any]:
    return {
        **on_gpu.to_json(),
        "smallest_gpu": gpu_name(on_gpu),
        "streaming_bytes": least_streaming_bytes(facts, on_gpu),
        "gpus_needed": {
            str(size_gib): fewest_ranks(
                facts,
                on_gpu.quantization,
                size_gib * GIB,
                on_gpu=True,
                context_tokens=on_gpu.context_tokens,
            )
            for size_gib in _GPU_SIZES_GIB
        },
        "cpu_bytes": on_cpu.total_bytes,
    }


def _counts(needed: dict[str, int | None]) -> str:
    return " / ".join("-" if count is None else str(count) for count in needed.values())


def _contexts(longest: int, asked: int) -> list[int]:
    """Return the contexts to count memory for, none of them longer than the model's own."""
    wanted = (asked,) if asked else (DEFAULT_CONTEXT, _LONG_CONTEXT, longest)
    return sorted({min(context, longest) for context in wanted})
