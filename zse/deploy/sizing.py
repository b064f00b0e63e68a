"""How much memory the model needs on the platform, before anything is paid for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zse.engine.requirements import read_facts
from zse.errors import NotFoundError, UsageError
from zse.models.memory import MemoryEstimate, ModelFacts, estimate_memory
from zse.models.registry import find_known
from zse.models.resolve import SUFFIX, HubRepository, OciFile, RemoteFile, RemoteGguf, resolve_model
from zse.units import GIB

if TYPE_CHECKING:
    from zse.settings import Settings


def measure(
    model: str,
    settings: Settings,
    *,
    on_gpu: bool,
    context_tokens: int = 0,
    memory_gib: float = 0.0,
    is_needed: bool = True,
) -> MemoryEstimate | None:
    """Return what a model needs, from its header; None when it cannot be told from here.

    Args:
        model: A .zse file, a checkpoint folder, ``tiny``, an address, a repository of the
            registry, or nothing.
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
        known = int(memory_gib * GIB)
        return MemoryEstimate(stored_bytes=known, weights_bytes=known, kv_bytes=0, overhead_bytes=0)
    facts = _facts_of(model, settings, is_needed=is_needed)
    return need_of(facts, on_gpu=on_gpu, context_tokens=context_tokens) if facts else None


def need_of(facts: ModelFacts, *, on_gpu: bool, context_tokens: int = 0) -> MemoryEstimate:
    """Return what a model needs, from its shapes; a checkpoint counts as INT4."""
    return estimate_memory(facts, "int4", on_gpu=on_gpu, context_tokens=context_tokens)


def _facts_of(model: str, settings: Settings, *, is_needed: bool) -> ModelFacts | None:
    try:
        named = resolve_model(model) if model else None
    except NotFoundError:
        if is_needed and model.endswith(SUFFIX):
            raise
        return None  # a name that means something where it is deployed
    if isinstance(named, HubRepository):
        return _known_facts(model)
    if isinstance(named, RemoteGguf) or (isinstance(named, RemoteFile | OciFile) and not is_needed):
        return None  # nothing is downloaded to make a plan
    return read_facts(model, settings) if named else None


def _known_facts(repository: str) -> ModelFacts | None:
    """Return what the registry knows of a repository: nothing is downloaded to make a plan."""
    try:
        return find_known(repository).facts
    except NotFoundError:
        return None
