"""How many threads compute a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.device.probe import DeviceInfo

_WEIGHT_BYTES_A_THREAD = 8 << 20
"""A thread that has less to read for a token costs more to wake and to wait for than it saves."""


def choose_threads(machine: DeviceInfo, weight_bytes: int) -> int:
    """Return how many threads compute a model best that reads ``weight_bytes`` for a token."""
    return max(1, min(machine.compute_threads, weight_bytes // _WEIGHT_BYTES_A_THREAD))
