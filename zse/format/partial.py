"""The unfinished file on disk: locked, written in order, journalled group by group.

A group enters the journal only after its bytes are on the disk, so what the journal says survives
a kill and a power cut. The cost is one fdatasync a group, which a streamed write hides. What is
written is gathered into whole huge pages: a kernel that has such pages for files (Linux 6.16 on
ext4, long since on XFS) keeps what comes in one piece as one, and whoever maps the file then waits
for a tenth of the page tables.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from typing import TYPE_CHECKING

from zse.errors import DiskFullError, NotFoundError
from zse.format.errors import Misuse
from zse.store.locks import is_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ZEROS = bytes(1 << 20)
_HUGE_PAGE_BYTES = 2 << 20
"""Of amd64, and of arm64 with pages of 4 KiB. Elsewhere it is as good as any number."""


def write_at(fd: int, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
    """Write all of ``data`` at an offset, wherever the file stands."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset_bytes + done)


def lock_alone(fd: int, path: Path) -> None:
    """Lock a file for its one writer; a UsageError says that there is another."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Misuse.WRITER_BUSY(f"another process is writing {path}") from None


class PartialFile:
    """``<path>.partial`` and its journal ``<path>.partial.json``.

    Raises:
        NotFoundError: The folder does not exist.
        UsageError: Another process holds the partial file.
    """

    def __init__(self, path: Path) -> None:
        self._final = path
        self.path = path.with_name(path.name + ".partial")
        self._journal = path.with_name(path.name + ".partial.json")
        self.offset_bytes = 0
        """Where the next byte goes."""
        self._gathered = bytearray()
        """Bytes before it that are not in the file yet."""
        self.fd = self._open_locked()

    def _open_locked(self) -> int:
        """Return the partial file's descriptor, locked.

        A writer that ends between the opening and the lock has renamed or removed what was opened.
        Renamed it is the finished file, which must not be written to: the name is opened anew.
        """
        while True:
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(
                    f"the folder {self._final.parent} does not exist",
                    hint="Create it, or fix the path.",
                ) from None
            try:
                lock_alone(fd, self._final)
                if is_at(fd, self.path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def read_journal(self, plan_digest: str) -> list[tuple[str, str]] | None:
        """Return ``(group, sha256)`` of the groups written so far.

        Args:
            plan_digest: SHA-256 of the plan that the groups must belong to.

        Returns:
            None when there is no journal, or it belongs to another plan.
        """
        try:
            record = json.loads(self._journal.read_bytes())
            groups = [(str(name), str(digest)) for name, digest in record["groups"]]
            return groups if record["plan"] == plan_digest else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_journal(self, plan_digest: str, groups: list[tuple[str, str]]) -> None:
        """Put the data on the disk, then say which groups are complete."""
        self._flush()
        with self._disk_errors():
            os.fdatasync(self.fd)
            draft = self._journal.with_name(self._journal.name + ".tmp")
            with draft.open("wb") as file:
                file.write(json.dumps({"plan": plan_digest, "groups": groups}).encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._journal)

    def restart_at(self, offset_bytes: int) -> None:
        """Drop everything from ``offset_bytes`` on, and write there next."""
        self._gathered.clear()
        with self._disk_errors():
            os.ftruncate(self.fd, offset_bytes)
        self.offset_bytes = offset_bytes

    def write(self, data: bytes | memoryview) -> None:
        """Write all of ``data`` (bytes) at the current offset."""
        view = memoryview(data)
        while len(view):
            into_page_bytes = self.offset_bytes % _HUGE_PAGE_BYTES
            whole_bytes = len(view) - len(view) % _HUGE_PAGE_BYTES
            if into_page_bytes == 0 and whole_bytes:  # where one begins nothing is gathered
                # All at once: between calls other threads may take the interpreter for long.
                piece = view[:whole_bytes]
                self._write_at(piece, self.offset_bytes)
            else:
                piece = view[: _HUGE_PAGE_BYTES - into_page_bytes]
                self._gathered += piece
            self.offset_bytes += len(piece)
            if self.offset_bytes % _HUGE_PAGE_BYTES == 0:
                self._flush()
            view = view[len(piece) :]

    def _flush(self) -> None:
        self._write_at(self._gathered, self.offset_bytes - len(self._gathered))
        self._gathered.clear()

    def write_zeros_until(self, offset_bytes: int) -> Iterator[bytes]:
        """Write zeros up to an offset; yield them piece by piece, for a running digest."""
        while self.offset_bytes < offset_bytes:
            piece = _ZEROS[: min(len(_ZEROS), offset_bytes - self.offset_bytes)]
            self.write(piece)
            yield piece

    def write_at_start(self, data: bytes) -> None:
        """Write the prefix and the header into the space kept for them, behind all else."""
        self._flush()
        self._write_at(data, 0)

    def publish(self) -> None:
        """Sync, rename to the final name, sync the folder, drop the journal."""
        with self._disk_errors():
            os.fsync(self.fd)
            self.path.replace(self._final)
            folder = os.open(self._final.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self._journal.unlink(missing_ok=True)
        os.close(self.fd)

    def abandon(self, *, keep: bool) -> None:
        """Close the file; remove it and its journal unless they are kept for a resume."""
        if not keep:
            self._journal.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        os.close(self.fd)

    def _write_at(self, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
        with self._disk_errors():
            write_at(self.fd, data, offset_bytes)

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise DiskFullError(
                    f"no room for {self._final}: {error.strerror} at byte {self.offset_bytes}"
                ) from error
            raise
