"""Where a model's bytes come from, and the source for local files.

Chunks that are in the page cache are read through it. Others are read with O_DIRECT, which saves a
copy by the CPU and leaves the page cache to others. The choice is made for each chunk.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Literal, Protocol

from zse.device.loader import structs
from zse.errors import FormatError, SourceChangedError, StoreError
from zse.format.errors import Rule
from zse.format.reader import OpenFile, open_file
from zse.format.spec import PAGE
from zse.stream.residency import PageCacheMap

DirectMode = Literal["auto", "always", "never"]

_CACHED_SHARE = 0.5
"""A chunk with at least this share of its pages in the page cache is read through it."""


class ByteSource(Protocol):
    """A run of bytes that several threads may read at once."""

    @property
    def name(self) -> str:
        """The path or address, for messages."""

    @property
    def kind(self) -> str:
        """How bytes came so far: ``page cache``, ``direct``, ``mixed``, ``http`` or ``peers``."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole."""

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view`` with the bytes from ``offset_bytes``.

        Raises:
            FormatError: The file ends before the view is full.
            StoreError: The storage failed.
        """

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        """Whether a read of this range waits for a disk or a network."""

    def check_unchanged(self) -> None:
        """Check that what was read is one state of the file.

        Raises:
            SourceChangedError: The file was written to since it was opened.
        """

    def interrupt(self) -> None:
        """Make reads that wait for a network fail soon; the source cannot be used afterwards."""

    def close(self) -> None:
        """Release its resources. No thread may be reading."""


class LocalSource:
    """A regular file.

    Args:
        file: Its path; or the file, open, which is taken over.
        direct: ``auto`` reads cold chunks with O_DIRECT, ``always`` every chunk that is aligned,
            ``never`` none. Where the file system refuses O_DIRECT, reads are buffered.

    Raises:
        NotFoundError: There is no such regular file.
        UsageError: It cannot be opened.
    """

    def __init__(
        self, file: str | os.PathLike[str] | OpenFile, *, direct: DirectMode = "auto"
    ) -> None:
        self._file = file if isinstance(file, OpenFile) else open_file(Path(file))
        self._direct_fd = -1 if direct == "never" else self._open_direct()
        self._cache = (
            PageCacheMap(self._file.fd, self.size_bytes)
            if direct == "auto" and self._direct_fd >= 0
            else None
        )
        self._lock = threading.Lock()
        self._direct_bytes = self._buffered_bytes = 0

    @property
    def name(self) -> str:
        return str(self._file.path)

    @property
    def kind(self) -> str:
        if self._direct_bytes and self._buffered_bytes:
            return "mixed"
        return "direct" if self._direct_bytes else "page cache"

    @property
    def size_bytes(self) -> int:
        return self._file.opened_state[0]

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``. O_DIRECT needs it to start at a multiple of 4096."""
        filled = 0
        if self._wants_direct(offset_bytes, len(view)):
            filled = self._fill_direct(offset_bytes, view)
        direct = filled
        while filled < len(view):
            filled += self._read_some(self._file.fd, offset_bytes + filled, view, filled)
        self.count(direct_bytes=direct, buffered_bytes=filled - direct)

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        return self._wants_direct(offset_bytes, length_bytes)

    def check_unchanged(self) -> None:
        """Compare size and time of modification with those at opening."""
        found = self._file.state()
        if found[0] < self.size_bytes:
            raise self.shrank()
        if found != self._file.opened_state:
            raise SourceChangedError(f"{self.name} was written to while it was read")

    def interrupt(self) -> None:
        """Do nothing: reads of a disk end by themselves."""

    def as_struct(self) -> structs.File:
        """Return what threads of C read by; it is valid until ``close``."""
        return structs.File(
            fd=self._file.fd,
            direct_fd=self._direct_fd,
            size=self.size_bytes,
            mapping=self._cache.address if self._cache is not None else None,
            asks_cache=int(self._cache is not None),
        )

    def count(self, *, direct_bytes: int, buffered_bytes: int) -> None:
        """Count bytes that native threads have read from it."""
        with self._lock:
            self._direct_bytes += direct_bytes
            self._buffered_bytes += buffered_bytes

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
        self._file.close()
        if self._direct_fd >= 0:
            os.close(self._direct_fd)
        self._direct_fd = -1

    def _open_direct(self) -> int:
        """Open the file again by its name, for O_DIRECT; -1 if that fails or it is another file."""
        try:
            fd = os.open(self._file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_NONBLOCK)
        except OSError:
            return -1
        if os.path.samestat(os.fstat(fd), os.fstat(self._file.fd)):
            return fd
        os.close(fd)
        return -1

    def _wants_direct(self, offset_bytes: int, length_bytes: int) -> bool:
        if self._direct_fd < 0 or offset_bytes % PAGE or length_bytes % PAGE:
            return False
        if self._cache is None:
            return True
        return self._cache.resident_share(offset_bytes, length_bytes) < _CACHED_SHARE

    def _fill_direct(self, offset_bytes: int, view: memoryview) -> int:
        """Read with O_DIRECT; return how much was filled. The caller reads the rest buffered."""
        filled = 0
        while filled < len(view) and filled % PAGE == 0:
            try:
                filled += self._read_some(self._direct_fd, offset_bytes + filled, view, filled)
            except OSError:  # the file system, or this buffer, cannot do it
                break
        return filled

    def _read_some(self, fd: int, offset_bytes: int, view: memoryview, filled: int) -> int:
        """Read once into ``view[filled:]``; return the count, which is above 0."""
        try:
            with view[filled:] as rest:
                count = os.preadv(fd, [rest], offset_bytes)
        except OSError as error:
            if fd == self._direct_fd and error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            raise self.read_error(offset_bytes, error.errno or 0) from error
        if count == 0:
            raise self.shrank()
        return count

    def read_error(self, offset_bytes: int, number: int) -> StoreError:
        """Return what the system's number of an error means for a read of this file."""
        return StoreError(
            f"cannot read {self.name} at byte {offset_bytes}: {os.strerror(number)}",
            hint="Check the disk or the network file system.",
        )

    def shrank(self) -> FormatError:
        """Return the error of a file that ended before what was wanted of it."""
        found = self._file.state()[0]
        return Rule.FILE_SHRANK(
            f"{self.name} has {found} bytes now; it had {self.size_bytes} when it was opened"
        )
