"""How much memory the model needs on the platform, before anything is paid for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zse.engine.requirements import read_facts
from zse.errors import NotFoundError, UsageError
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.resolve import SUFFIX, HubRepository, RemoteFile, resolve_model
from zse.records import record
from zse.units import GIB, memory_text

if TYPE_CHECKING:
    from zse.settings import Settings


@record
class MemoryNeed:
    """Memory of one replica, in bytes."""

    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    quantization: str = ""
    context_tokens: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    def __str__(self) -> str:
        total = f"{memory_text(self.total_bytes)} of memory"
        if not self.context_tokens:
            return total
        weights = f"{memory_text(self.weights_bytes)} of {self.quantization} weights"
        return f"{total}: {weights}, {self.context_tokens} tokens of context"


def measure(
    model: str,
    settings: Settings,
    *,
    on_gpu: bool,
    context_tokens: int = 0,
    memory_gib: float = 0.0,
    is_needed: bool = True,
) -> MemoryNeed | None:
    """Return what a model needs, from its header; None when it cannot be told from here.

    Args:
        model: A .zse file, a checkpoint folder, ``tiny``, an address, or nothing.
        settings: How an address is reached.
        on_gpu: Keys and values in bf16, as on a GPU; else in float32, as on a CPU.
        context_tokens: Tokens of KV cache that must fit; 0 means 4096, or what the model has.
        memory_gib: Memory as the caller knows it; wins.
        is_needed: Ask the storage for the header of what is behind an address, and fail when a
            file is not there; a caller that has chosen a machine can do without.

    Raises:
        NotFoundError: MODEL looks like a file or an object, but there is none.
        FormatError: The file is damaged.
        StoreError: The storage cannot be reached.
    """
    if not 0 <= memory_gib < math.inf or context_tokens < 0:
        raise UsageError("memory and context are numbers that are not negative")
    if memory_gib:
        return MemoryNeed(weights_bytes=int(memory_gib * GIB), kv_bytes=0, overhead_bytes=0)
    facts = _facts_of(model, settings, is_needed=is_needed)
    return need_of(facts, on_gpu=on_gpu, context_tokens=context_tokens) if facts else None


def need_of(facts: ModelFacts, *, on_gpu: bool, context_tokens: int = 0) -> MemoryNeed:
    """Return what a model needs, from its shapes; a checkpoint counts as INT4."""
    estimate = estimate_memory(facts, "int4", on_gpu=on_gpu, context_tokens=context_tokens)
    return MemoryNeed(
        weights_bytes=estimate.weights_bytes,
        kv_bytes=estimate.kv_bytes,
        overhead_bytes=estimate.overhead_bytes,
        quantization=estimate.quantization,
        context_tokens=estimate.context_tokens,
    )


def _facts_of(model: str, settings: Settings, *, is_needed: bool) -> ModelFacts | None:
    try:
        named = resolve_model(model) if model else None
    except NotFoundError:
        if is_needed and model.endswith(SUFFIX):
            raise
        return None  # a name that means something where it is deployed
    if isinstance(named, HubRepository) or (isinstance(named, RemoteFile) and not is_needed):
        return None  # nothing is downloaded to make a plan
    return read_facts(model, settings) if named else None
