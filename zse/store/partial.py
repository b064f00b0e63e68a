"""A download that can go on later: what has come so far, under a name that says of what.

The bytes come in order, so the partial file's length is all there is to know about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import TYPE_CHECKING, Self

from zse.store.local import LocalWriter, chunks_of
from zse.store.locks import open_locked, remove_unused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.store.base import Store

_IDENTITY_DIGITS = 16


def identity_of(store: Store) -> str:
    """Return 64 digits that change when the object does, or when another one is meant."""
    # A digest names the bytes themselves, whoever stored them again.
    checksum = store.checksum()
    mark = store.version() if checksum is None else str(checksum)
    # Without a mark even a signed address' query may be what tells two objects apart.
    place = str(store.location) if mark else store.location.url
    facts = f"{place}\n{store.size()}\n{mark}"
    return hashlib.sha256(facts.encode()).hexdigest()


class PartialWriter(LocalWriter):
    """Writes ``.NAME.identity.part`` beside the target and renames it when the block ends well.

    When the block fails the file stays, to be taken up by the next writer of the same identity.
    Those who write the same object to the same path at the same time wait for each other.
    """

    _is_kept = True

    def __init__(self, path: Path, identity: str) -> None:
        super().__init__(path, mark=identity[:_IDENTITY_DIGITS])

    def __enter__(self) -> Self:
        super().__enter__()
        _remove_others(self._path, self._temporary)
        return self

    def read_back(self, limit_bytes: int) -> Iterator[memoryview]:
        """Yield what an earlier writer left; what follows is written after it."""
        descriptor = self._file_descriptor
        if os.fstat(descriptor).st_size > limit_bytes:
            os.ftruncate(descriptor, 0)
        yield from chunks_of(descriptor)
        os.lseek(descriptor, 0, os.SEEK_END)

    def _open(self) -> int:
        return open_locked(self._temporary, mode=0o666)


def _remove_others(path: Path, keep: Path) -> None:
    """Remove what other unfinished downloads to ``path`` left, unless one is still running."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{_IDENTITY_DIGITS}}}\.part")
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            if name.fullmatch(left.name) and left != keep:
                with contextlib.suppress(OSError):
                    remove_unused(left)
