"""What this machine's processor is and which instructions it says it has."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""What the system calls a processor, and what images and folders call it."""
_CPUINFO = Path("/proc/cpuinfo")
_FIRST_BYTES = 16384
"""More than one processor's paragraph; the kernel writes the rest only when it is read."""
_AT_HWCAP, _AT_HWCAP2 = 16, 26
_HWCAP_BITS = {
    "asimd": 1,
    "crc32": 7,
    "atomics": 8,
    "fphp": 9,
    "asimdhp": 10,
    "asimdrdm": 12,
    "asimddp": 20,
}
_HWCAP2_BITS = {"i8mm": 13}


def architecture() -> str:
    """Return what images call this machine's architecture, ``amd64``; else the system's word."""
    machine = os.uname().machine
    return ARCHITECTURES.get(machine, machine)


def features() -> frozenset[str]:
    """Return what the system says the processor has, by the names of ``/proc/cpuinfo``.

    Empty where the system does not say. A feature named here may still be refused: a virtual
    machine's flags can promise what its host forbids.
    """
    return _hardware_capabilities() if architecture() == "arm64" else _flags()


def _flags() -> frozenset[str]:
    try:
        with _CPUINFO.open("rb", buffering=0) as file:
            text = file.read(_FIRST_BYTES).decode(errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _hardware_capabilities() -> frozenset[str]:
    """Read the auxiliary vector, which an emulator fills with its own and ``/proc`` does not."""
    read = ctypes.CDLL(None).getauxval
    read.argtypes, read.restype = [ctypes.c_ulong], ctypes.c_ulong
    return names_of_capabilities(read(_AT_HWCAP), read(_AT_HWCAP2))


def names_of_capabilities(first: int, second: int) -> frozenset[str]:
    """Return what ``/proc/cpuinfo`` of arm64 calls the bits of AT_HWCAP and AT_HWCAP2."""
    return frozenset(
        [name for name, bit in _HWCAP_BITS.items() if first >> bit & 1]
        + [name for name, bit in _HWCAP2_BITS.items() if second >> bit & 1]
    )
