"""Memory of a torch device, with levels of pressure; see ``zse.stream.tracker``."""

from __future__ import annotations

import torch

from zse.device.probe import probe
from zse.stream.tracker import MemoryPressure, MemoryState, PressureLimits
from zse.stream.tracker import MemoryTracker as _Tracker

__all__ = ["MemoryPressure", "MemoryState", "MemoryTracker", "PressureLimits"]


class MemoryTracker(_Tracker):
    """Looks at the memory of a device as torch names it: ``cuda``, ``cuda:1`` or ``cpu``."""

    def __init__(
        self, device: str | torch.device = "cuda", limits: PressureLimits | None = None
    ) -> None:
        self.device = torch.device(device)
        super().__init__(self._read_device, limits)

    def _read_device(self) -> tuple[int, int]:
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            return int(free), int(total)
        machine = probe()
        return machine.available_memory_bytes, machine.total_memory_bytes
