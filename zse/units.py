"""Sizes: units of memory, multiples, and what people write, such as ``250MB`` or ``1.5 GiB``."""

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
