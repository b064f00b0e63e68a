"""Masks that a test says: which tokens may come, as sets."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class GivenMasks:
    """See ``zse.backends.types.TokenMasks``; the sets are asked for when they are written."""

    allowed: Callable[[], list[set[int]]]
    num_written: int = field(default=0)

    def write(self, address: int, row_bytes: int) -> None:
        self.num_written += 1
        for row, tokens in enumerate(self.allowed()):
            words = (ctypes.c_uint32 * (row_bytes // 4)).from_address(address + row * row_bytes)
            ctypes.memset(address + row * row_bytes, 0, row_bytes)
            for token in tokens:
                words[token // 32] |= 1 << token % 32
