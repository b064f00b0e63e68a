"""What this process has in memory of the files that it maps."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from zse.backends.cpu.memory import address_of

_ENTRY_BYTES = 8


def mapped_bytes(path: Path) -> int:
    """Return how much of a file's mapping is present."""
    maps = Path("/proc/self/smaps").read_text()
    sizes = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    return sum(map(int, sizes)) * 1024


def present_bytes(view: memoryview) -> int:
    """Return how much of a mapping's view is present in this process."""
    first, end = (
        address_of(view) // mmap.PAGESIZE,
        -(-(address_of(view) + len(view)) // mmap.PAGESIZE),
    )
    with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
        table.seek(first * _ENTRY_BYTES)
        entries = table.read((end - first) * _ENTRY_BYTES)
    present = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]  # its highest bit is in the last byte
    return sum(byte >> 7 for byte in present) * mmap.PAGESIZE
