"""What is left for another model: of the limit that was set, or of what is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.open import check_device, free_gpu_bytes, runs_on_gpu
from zse.device.probe import probe
from zse.errors import ZSEError
from zse.models.memory import CPU_RUNTIME_BYTES, GPU_RUNTIME_BYTES, MemoryEstimate, estimate_memory
from zse.option import with_values
from zse.options import LoadOptions
from zse.records import record
from zse.server_options import ServeOptions
from zse.units import GIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.models.memory import ModelFacts
    from zse.serve.models import TableEntry

_CACHE_SEQUENCES = 4
"""Within a limit, the KV cache on a CPU holds as many sequences of the whole context, if it can."""


class ModelMemoryError(ZSEError):
    """A model does not fit beside the others."""

    http_status = 409
    error_code = "insufficient_memory"


@record
class Room:
    """Memory of the device that models run on, in bytes."""

    limit_bytes: int
    """What all models together may take; 0 where no limit was set."""
    used_bytes: int
    """What the loaded ones hold: weights and KV caches, reserved or written."""
    left_bytes: int
    """What another one may take."""
    on_gpu: bool

    def holds(self, estimate: MemoryEstimate) -> bool:
        """Whether another model of this size fits."""
        return self._needed_bytes(estimate) <= self.left_bytes

    def check(self, estimate: MemoryEstimate) -> None:
        """Refuse a model that does not fit.

        Raises:
            ModelMemoryError: It needs more than what is left.
        """
        if not self.holds(estimate):
            raise ModelMemoryError(
                f"The model needs about {memory_text(self._needed_bytes(estimate))}; "
                f"{memory_text(max(0, self.left_bytes))} are left for models.",
                hint="Unload another model first, or ask for a shorter context.",
            )

    def options_within(
        self, load: LoadOptions, estimate: MemoryEstimate, *, shares: int = 1
    ) -> LoadOptions:
        """Return the options of a load that keeps to what is left.

        Without a limit, a model that shares a GPU with others to come takes a share of what is
        left: its KV cache would take all of it.
        """
        if self.on_gpu and (self.limit_bytes or shares > 1):
            allowed = max(self.left_bytes // shares, self._needed_bytes(estimate))
            return with_values(load, {"vram_gib": allowed / GIB})
        if not self.limit_bytes:
            return load
        if load.cache.kv_gib:
            return load
        spare = self.left_bytes - self._needed_bytes(estimate) + estimate.kv_bytes
        kv_bytes = min(_CACHE_SEQUENCES * estimate.kv_bytes, spare)
        return with_values(load, {"kv_gib": kv_bytes / GIB})

    def _needed_bytes(self, estimate: MemoryEstimate) -> int:
        """Return what a model adds to this process, which is there already."""
        return estimate.total_bytes - (0 if self.on_gpu else CPU_RUNTIME_BYTES)


def room_for_models(options: ServeOptions, models: Iterable[TableEntry]) -> Room:
    """Look at the device, and at what the loaded models hold of it.

    Raises:
        DeviceError: The device is not known.
    """
    device = options.load.device
    check_device(device.name)
    on_gpu = runs_on_gpu(device.name)
    limit = device.vram_bytes if on_gpu else options.models_bytes
    used = sum(_held_bytes(entry, on_gpu=on_gpu) for entry in models)
    free = free_gpu_bytes(device.name) if on_gpu else probe().available_memory_bytes
    left = min(free, limit - used) if limit else free
    return Room(limit_bytes=limit, used_bytes=used, left_bytes=left, on_gpu=on_gpu)


def _held_bytes(entry: TableEntry, *, on_gpu: bool) -> int:
    held = sum(entry.model.engine.memory_bytes().values())
    # Scratch memory, kernels and captured steps; on a CPU pages come and go with their use.
    return held + (GPU_RUNTIME_BYTES if on_gpu else 0)


def estimate_of(facts: ModelFacts, load: LoadOptions, *, on_gpu: bool) -> MemoryEstimate:
    """Estimate a load with one sequence of the whole context, as it would be converted."""
    return estimate_memory(
        facts,
        load.quant or "int4",
        on_gpu=on_gpu,
        context_tokens=load.batch.max_context,
        kv_dtype=load.cache.kv_dtype,
    )
