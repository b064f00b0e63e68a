"""Sizes: units of memory, multiples, and how people write them: ``250MB``, ``1.5 GiB``."""

from __future__ import annotations

import re

from zse.errors import UsageError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_UNITS = {"": 1, "b": 1} | {
    word: base**power
    for power, letter in enumerate("kmgt", start=1)
    for word, base in ((letter, 1000), (f"{letter}b", 1000), (f"{letter}ib", 1024))
}


def align_up(offset_bytes: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``offset_bytes``."""
    return -(-offset_bytes // alignment) * alignment


def parse_size(text: str) -> int:
    """Return a size in bytes.

    Raises:
        UsageError: The text is no size above zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a size", hint="Write 250MB, 1.5GB or 2GiB.")
    return int(float(match[1]) * _UNITS[match[2]])


def size_text(num_bytes: float) -> str:
    """Say a size of a file: in decimal units, as networks and disks count it."""
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def memory_text(size_bytes: int) -> str:
    """Say a size of memory, of a plan or a machine: in GiB, as drivers and limits count it."""
    return f"{size_bytes / GIB:.1f} GiB"
