"""Where prefixes are between two starts: one file a model, in a folder or an object store.

Between two turns of a model in one process they may also be in its memory (``memory_store``).

A file is replaced as a whole, under its final name, or not at all: a disk that fills up loses
nothing. What a folder holds of all models together is bounded; what was written first goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zse.engine.prefixes.cipher import is_encrypted
from zse.engine.prefixes.memory_store import PLACE, memory_store
from zse.errors import NotFoundError, RefusedError, UsageError
from zse.format.reader import open_file
from zse.store.location import parse_location
from zse.store.private_file import PrivateWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.format.reader import OpenFile
    from zse.kv.prefix_pack import PrefixBinding
    from zse.settings import Settings
    from zse.store.location import Location

_LOG = logging.getLogger("zse.engine")
SUFFIX = ".zpx"
_MOST_BYTES = 1 << 40
_OTHERS_MAY_WRITE = 0o022


class PrefixStore(Protocol):
    """Keeps one pack under a name."""

    def read(self, name: str) -> memoryview | None:
        """Return what was written last under a name; None where nothing was."""

    def write(self, name: str, pieces: Iterable[bytes | bytearray]) -> int:
        """Put bytes in the place of what has that name, and return how many they are.

        Raises:
            DiskFullError: There is no room; what was there is there.
            StoreError: They could not be written; likewise.
        """


def name_of(binding: PrefixBinding) -> str:
    """Return the name under which a model's prefixes are kept, as it is run here."""
    facts = f"{binding.model}\n{binding.layout}\n{binding.block_size}"
    return hashlib.sha256(facts.encode()).hexdigest()[:32] + SUFFIX


def open_store(place: str, settings: Settings, most_bytes: int) -> PrefixStore:
    """Return the store that a place names.

    Raises:
        UsageError: It is neither a folder, nor a prefix of s3://, nor ``memory:``.
    """
    if place == PLACE:
        return memory_store(most_bytes)
    location = parse_location(place)
    if location.is_local:
        return FolderStore(location.path, most_bytes)
    if location.scheme != "s3" or not location.is_prefix:
        raise UsageError(
            f"prefixes cannot be kept at {location}",
            hint="Name a folder, memory:, or s3://BUCKET/PREFIX/ with a slash at its end.",
        )
    return ObjectStore(location, settings)


class FolderStore:
    """Files that only this user reads."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def read(self, name: str) -> memoryview | None:
        try:
            file = open_file(self._folder / name)
        except NotFoundError:
            return None
        try:
            size_bytes, _ = file.opened_state
            if size_bytes == 0:
                return memoryview(b"")
            # A copy of one's own: who replaces the file changes another one.
            data = memoryview(mmap.mmap(file.fd, size_bytes, access=mmap.ACCESS_READ))
            _check_owner(file, data)
            return data
        finally:
            file.close()

    def write(self, name: str, pieces: Iterable[bytes | bytearray]) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        count = 0
        with PrivateWriter(self._folder / name) as writer:
            for piece in pieces:
                count += writer.write(piece)
        self._make_room(keep=name)
        return count

    def _make_room(self, keep: str) -> None:
        """Remove other models' files, the oldest first, until the folder is within its bound."""
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                facts = path.stat()
                found.append((path.name == keep, facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, _, size, _ in found)
        for is_kept, _, size, path in sorted(found):
            if total <= self._most_bytes or is_kept:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size


def _check_owner(file: OpenFile, data: memoryview) -> None:
    """Refuse what others may have written: answers would be computed from what they made up.

    What is encrypted shows by its tags who wrote it.

    Raises:
        RefusedError: The file is another user's, or one that others may write to.
    """
    facts = os.fstat(file.fd)
    is_own = facts.st_uid in (0, os.geteuid()) and not facts.st_mode & _OTHERS_MAY_WRITE
    if not is_own and not is_encrypted(data):
        raise RefusedError(
            f"{file.path} belongs to user {facts.st_uid}, with mode {facts.st_mode & 0o777:o}; "
            f"expected user {os.geteuid()}, and nobody else who may write",
            hint="Keep prefixes in a folder of your own, or encrypt them: --prefix-key-file.",
        )


class ObjectStore:
    """Objects below a prefix of a bucket."""

    def __init__(self, location: Location, settings: Settings) -> None:
        self._location = location
        self._settings = settings
        if find_spec("boto3") is None:  # said now, not when the server stops
            _LOG.warning("prefixes are read from %s, and not kept there: no boto3", location)

    def read(self, name: str) -> memoryview | None:
        from zse.store.objects import open_object

        try:
            found = open_object(parse_location(self._location.url + name), self._settings)
        except NotFoundError:
            return None
        with contextlib.closing(found):
            if found.size_bytes > _MOST_BYTES:
                return None
            data = memoryview(bytearray(found.size_bytes))
            found.read_into(0, data)
            return data

    def write(self, name: str, pieces: Iterable[bytes | bytearray]) -> int:
        from zse.store.transfer import put_file

        with tempfile.TemporaryDirectory(prefix="zse-prefixes-") as folder:
            path, count = Path(folder) / name, 0
            with PrivateWriter(path) as writer:
                for piece in pieces:
                    count += writer.write(piece)
            put_file(path, parse_location(self._location.url + name), self._settings)
        return count
