"""What the processes that this one started hold in memory, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

FIELDS = {
    "Rss": "resident_bytes",
    "Pss": "proportional_bytes",
    "Anonymous": "anonymous_bytes",
    "Shared_Clean": "shared_bytes",
}
"""Resident pages count fully for each process that maps them, or by their share; the anonymous ones
are memory that only this process has, and what is left are pages of files, which the page cache
holds anyway."""


def memory_of_children() -> dict[str, float]:
    """Return bytes that all our descendants hold together, by kind."""
    total = dict.fromkeys(FIELDS.values(), 0.0)
    for process_id in descendants(os.getpid()):
        held = read_rollup(Path(f"/proc/{process_id}/smaps_rollup").read_text())
        for name, size in held.items():
            total[name] += size
    return total


def descendants(process_id: int) -> list[int]:
    """Return the processes that a process started, and theirs."""
    found = []
    for task in Path(f"/proc/{process_id}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def read_rollup(text: str) -> dict[str, int]:
    """Return the bytes of the fields that count, of the text of a ``smaps_rollup``."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        name = FIELDS.get(words[0].rstrip(":"))
        if name is not None:
            found[name] = int(words[1]) << 10
    return found
