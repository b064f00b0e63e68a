"""A download that can go on later: what has come so far, under a name that says of what.

The bytes come in order, so the partial file's length is all there is to know about it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from typing import TYPE_CHECKING, Self

from zse.store.local import chunks_of, publish, translated_os_error, write_all
from zse.store.locks import open_locked

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


class PartialWriter:
    """Writes ``.NAME.identity.part`` beside the target and renames it when the block ends well.

    When the block fails the file stays, to be taken up by the next writer of the same identity.
    Those who write the same object to the same path at the same time wait for each other.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        digits = identity[:_IDENTITY_DIGITS]
        self._temporary = path.with_name(f".{path.name}.{digits}.part")
        self._file_descriptor = -1
        self._discarded = False

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file_descriptor = open_locked(self._temporary, mode=0o666)
        except OSError as error:
            raise translated_os_error(error, self._path, "write") from error
        remove_partials(self._path, keep=self._temporary)
        return self

    def read_back(self, limit_bytes: int) -> Iterator[memoryview]:
        """Yield what an earlier writer left; what follows is written after it."""
        descriptor = self._file_descriptor
        if os.fstat(descriptor).st_size > limit_bytes:
            os.ftruncate(descriptor, 0)
        yield from chunks_of(descriptor)
        os.lseek(descriptor, 0, os.SEEK_END)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return write_all(self._file_descriptor, data, self._path)

    def discard(self) -> None:
        """Keep nothing: the bytes are not those of the object."""
        self._discarded = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                publish(self._file_descriptor, self._temporary, self._path)
            elif self._discarded:
                with contextlib.suppress(OSError):  # why it is discarded is on its way
                    self._temporary.unlink()
        finally:
            os.close(self._file_descriptor)


def remove_partials(path: Path, *, keep: Path | None = None) -> None:
    """Remove what unfinished downloads to ``path`` left, unless one is still running."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{{_IDENTITY_DIGITS}}}\.part")
    with contextlib.suppress(OSError):
        for left in path.parent.iterdir():
            if name.fullmatch(left.name) and left != keep:
                _remove_if_idle(left)


def _remove_if_idle(path: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)
