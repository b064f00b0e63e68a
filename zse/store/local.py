"""Local files: a temporary name beside the target, then one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING, Self

from zse.errors import DiskFullError, NotFoundError, StoreError, ZSEError
from zse.store.base import CHUNK_BYTES, Entry, Progress, Transfer
from zse.store.copying import copy_object
from zse.store.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.store.checksum import Checksum

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


def translated_os_error(error: OSError, path: Path, action: str) -> ZSEError:
    """Return the deliberate error that says what ``error`` means for ``path``."""
    if error.errno in FULL_ERRORS:
        return DiskFullError(f"no room left to {action} {path}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{path} does not exist", hint="Check the path.")
    return StoreError(
        f"cannot {action} {path}: {error.strerror or error}",
        hint="Check the path and its permissions.",
    )


def chunks_of(file_descriptor: int, offset: int = 0) -> Iterator[memoryview]:
    """Yield an open file from ``offset`` on in order, through one reused buffer."""
    view = memoryview(bytearray(CHUNK_BYTES))
    while count := os.preadv(file_descriptor, [view], offset):
        yield view[:count]
        offset += count


class LocalWriter:
    """Writes ``.NAME.random.part`` beside the target and renames it when the block ends well."""

    _is_kept = False
    """Whether what was written stays when the block fails."""

    def __init__(self, path: Path, *, mark: str = "") -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{mark or secrets.token_hex(6)}.part")
        self._file_descriptor = -1

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file_descriptor = self._open()
        except OSError as error:
            raise translated_os_error(error, self._path, "write") from error
        return self

    def read_back(self, limit_bytes: int) -> Iterator[memoryview]:  # noqa: ARG002
        """Yield what an earlier writer left: nothing, here."""
        yield from ()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += os.write(self._file_descriptor, view[written:])
        except OSError as error:
            raise translated_os_error(error, self._path, "write") from error
        return written

    def discard(self) -> None:
        """Keep nothing: the bytes are not those of the object."""
        self._is_kept = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_published = False
        try:
            if kind is None:
                os.fsync(self._file_descriptor)
                self._temporary.replace(self._path)
                is_published = True
        except OSError as error:
            raise translated_os_error(error, self._path, "write") from error
        finally:
            if not (is_published or self._is_kept):
                with contextlib.suppress(OSError):  # why it goes is on its way
                    self._temporary.unlink()
            os.close(self._file_descriptor)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._temporary, flags, 0o666)


class LocalStore:
    """A file of this machine."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._path = location.path

    @property
    def location(self) -> Location:
        return self._location

    def exists(self) -> bool:
        return self._path.is_file()

    def size(self) -> int:
        with self._reading() as file_descriptor:
            return os.fstat(file_descriptor).st_size

    def checksum(self) -> Checksum | None:
        """Return None: a file system keeps no digest beside a file."""
        return None

    def version(self) -> str:
        """Return what a write changes: inode, length and time."""
        with self._reading() as file_descriptor:
            facts = os.fstat(file_descriptor)
        return f"{facts.st_ino}-{facts.st_size}-{facts.st_mtime_ns}"

    def read_chunks(self, offset: int = 0) -> Iterator[memoryview]:
        """Yield the file from ``offset`` in order, through one reused buffer."""
        with self._reading() as file_descriptor:
            yield from chunks_of(file_descriptor, offset)

    def list(self) -> Iterator[Entry]:
        """Yield this file, or the files below this folder, sorted by path."""
        if self._path.is_file():
            yield Entry(location=self._location, size_bytes=self.size())
            return
        if not self._path.is_dir():
            raise NotFoundError(f"{self._path} does not exist", hint="Check the path.")
        for path in sorted(item for item in self._path.rglob("*") if item.is_file()):
            location = Location(scheme="file", path=path)
            yield Entry(location=location, size_bytes=path.stat().st_size)

    def put_file(
        self,
        local_path: Path,
        *,
        progress: Progress | None = None,
        resume: bool = False,  # noqa: ARG002 - a disk is faster than finding out what is there
    ) -> Transfer:
        source = LocalStore(Location(scheme="file", path=local_path))
        return copy_object(source, LocalWriter(self._path), progress)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[int]:
        file_descriptor = -1
        try:
            file_descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            yield file_descriptor
        except OSError as error:
            raise translated_os_error(error, self._path, "read") from error
        finally:
            if file_descriptor >= 0:
                os.close(file_descriptor)
