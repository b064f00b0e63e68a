"""Prefixes of models that have left, in this process's own memory, until the models are back.

For a server that sleeps, or whose models change places: the KV cache of a GPU is given back, and
what was worth keeping of it waits in host memory. It is bounded over all models, and ends with the
process; nothing of it is ever in a file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PLACE = "memory:"
"""What ``--prefix-store`` is for it."""


class MemoryStore:
    """See ``zse.engine.prefixes.store.PrefixStore``; what was written first goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytearray] = OrderedDict()
        self._lock = threading.Lock()
        self.most_bytes = 0
        """Bytes of all models together; what alone is more than that is not kept."""

    def read(self, name: str) -> memoryview | None:
        with self._lock:
            found = self._kept.get(name)
        return None if found is None else memoryview(found).toreadonly()

    def write(self, name: str, pieces: Iterable[bytes | bytearray]) -> int:
        content = bytearray()
        for piece in pieces:
            content += piece
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = content
            while self.length_bytes > self.most_bytes:
                self._kept.popitem(last=False)
        return len(content)

    @property
    def length_bytes(self) -> int:
        return sum(map(len, self._kept.values()))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


_STORE = MemoryStore()


def memory_store(most_bytes: int) -> MemoryStore:
    """Return this process's one, which holds at most so many bytes from now on."""
    _STORE.most_bytes = most_bytes
    return _STORE


def forget_all() -> None:
    """Give the memory of this process's one back."""
    _STORE.clear()
