"""Sizes as people write them: ``250MB``, ``1.5 GiB``."""

from __future__ import annotations

import re

from zse.errors import UsageError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str) -> int:
    """Return a size in bytes.

    Raises:
        UsageError: The text is no size above zero.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a size", hint="Write 250MB, 1.5GB or 2GiB.")
    return int(float(match[1]) * _UNITS[match[2]])
