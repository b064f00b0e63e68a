"""The files of the audit log: lines are only ever added, and old files are packed away.

Each line is one write to a file opened for appending, so lines of several servers that share a
folder do not mix. Whoever writes holds a shared lock of the file and whoever renames it the
exclusive one; the kernel drops both with the process. Of a line that a crash cut, the rest is cut
off too, before the next is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from zse.records import record
from zse.store.locks import open_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

FILE_NAME = "audit.jsonl"
MAX_FILE_BYTES = 50_000_000
NUM_KEPT = 10
_PACKED = ".jsonl.gz"
_TAIL_BYTES = 1 << 20
"""Longer than any line."""


@record
class Size:
    """What a folder holds."""

    file_bytes: int
    """Of the file that is being written."""
    num_packed: int
    packed_bytes: int


def _utc_now() -> datetime:
    return datetime.now(UTC)


class AuditFiles:
    """A folder of lines, the newest in ``audit.jsonl``.

    Args:
        folder: Made for this user alone when the first line is written.
        max_bytes: After so many a file is packed away.
        num_kept: Packed files that stay.
        now: When a file is packed away, for its name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        num_kept: int = NUM_KEPT,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self._max_bytes = max_bytes
        self._num_kept = num_kept
        self._now = now

    def append(self, lines: Sequence[bytes]) -> None:
        """Add whole lines.

        Raises:
            OSError: The folder or the file cannot be written.
        """
        with self._opened(is_shared=True) as file:
            # Another writer may be in the middle of its line: alone, one knows.
            is_whole = _rest_bytes(file) == 0
            size_bytes = _write(file, lines) if is_whole else 0
        if not is_whole:
            with self._opened() as file:
                os.ftruncate(file, os.fstat(file).st_size - _rest_bytes(file))
                size_bytes = _write(file, lines)
        if size_bytes >= self._max_bytes:
            self.rotate()

    def rotate(self) -> None:
        """Pack the file away, unless somebody just did, and drop the oldest packed ones."""
        with self._opened() as file:
            if os.fstat(file).st_size >= self._max_bytes:
                stamp = self._now().strftime("%Y%m%dT%H%M%S.%fZ")
                self.path.rename(self.folder / f"audit-{stamp}.jsonl")
        # What an earlier server left half packed is packed as well; two that pack one file write
        # the same.
        for path in self.folder.glob("audit-*.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                _pack(path)
        for path in self.packed()[: -self._num_kept]:
            path.unlink(missing_ok=True)

    def packed(self) -> list[Path]:
        """Return the packed files, the oldest first."""
        return sorted(self.folder.glob(f"audit-*{_PACKED}"))

    def lines(self) -> Iterator[bytes]:
        """Yield every line that has its end, the oldest first."""
        import gzip  # which no start needs

        for path in self.packed():
            with contextlib.suppress(FileNotFoundError), gzip.open(path, "rb") as file:
                yield from file
        for path in [*sorted(self.folder.glob("audit-*.jsonl")), self.path]:
            if path.with_name(f"{path.name}.gz").exists():
                continue  # it was packed just now
            with contextlib.suppress(FileNotFoundError), path.open("rb") as plain:
                yield from (line for line in plain if line.endswith(b"\n"))

    def size(self) -> Size:
        """Return how much is kept."""
        packed = self.packed()
        return Size(
            file_bytes=self.path.stat().st_size if self.path.exists() else 0,
            num_packed=len(packed),
            packed_bytes=sum(path.stat().st_size for path in packed),
        )

    def clear(self, *, packed_too: bool) -> None:
        """Forget what the current file holds, or everything."""
        if self.path.exists():
            with self._opened() as file:
                os.ftruncate(file, 0)
        if packed_too:
            for path in [*self.packed(), *self.folder.glob("audit-*.jsonl")]:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _opened(self, *, is_shared: bool = False) -> Iterator[int]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_locked(self.path, mode=0o600, is_shared=is_shared)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
            yield descriptor
        finally:
            os.close(descriptor)


def _write(file: int, lines: Sequence[bytes]) -> int:
    """Add lines, each in one piece; return the size of the file."""
    for line in lines:
        os.write(file, line)
    return os.fstat(file).st_size


def _rest_bytes(file: int) -> int:
    """Return how much of a line stands behind the last whole one."""
    size_bytes = os.fstat(file).st_size
    start = max(0, size_bytes - _TAIL_BYTES)
    if size_bytes == 0 or os.pread(file, 1, size_bytes - 1) == b"\n":
        return 0
    tail = os.pread(file, size_bytes - start, start)
    return len(tail) - tail.rfind(b"\n") - 1


def _pack(path: Path) -> None:
    import gzip
    import shutil

    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with path.open("rb") as source, temporary.open("wb") as target:
            os.fchmod(target.fileno(), 0o600)
            with gzip.GzipFile(fileobj=target, mode="wb", filename="", mtime=0) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
        temporary.replace(path.with_name(path.name + ".gz"))
        path.unlink(missing_ok=True)
    finally:
        temporary.unlink(missing_ok=True)
