"""A source whose bytes stay in a file of this machine as they pass by on their way to a GPU.

So a replica that was fed from an address has something to share, and nothing is asked for twice.
The copy into the page cache costs a fraction of what the network does. What the device had no use
for is read when the model is ready; only then, every digest right, does the file get its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Any, cast

from zse.format.container import check_sha256
from zse.format.reader import OpenFile, open_file
from zse.format.spec import CONTAINER
from zse.store.cache import Cache
from zse.store.cache_use import make_cache_folder

if TYPE_CHECKING:
    from pathlib import Path

    from zse.format.spec import Region, ZSEHeader
    from zse.settings import Settings
    from zse.store.location import Location
    from zse.stream.source import ByteSource

_READ_BYTES = 8 << 20


class KeepingSource:
    """See ``ByteSource``; the inner one is closed with it, and a file without a name removed.

    Args:
        inner: Where the bytes come from.
        location: What the file is called there.
        settings: Where the cache is.

    Raises:
        OSError: The cache's folder cannot be written to.
    """

    def __init__(self, inner: ByteSource, location: Location, settings: Settings) -> None:
        self._inner = inner
        self._location = location
        self._settings = settings
        self._path = _new_download(location, settings)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH)  # who cleans the cache leaves it alone
            os.ftruncate(self._fd, inner.size_bytes)
        except BaseException:
            self._drop()
            raise
        self._is_whole = True
        """Whether all that passed could be kept."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``. That the disk is full is no reason to stop."""
        self._inner.read_into(offset_bytes, view)
        if self._is_whole:
            try:
                _write(self._fd, offset_bytes, view)
            except OSError:
                self._is_whole = False

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        return self._inner.is_slow(offset_bytes, length_bytes)

    def distrust(self, offset_bytes: int, length_bytes: int) -> bool:
        """Pass it on, where the inner source knows others to ask."""
        distrust = getattr(self._inner, "distrust", None)
        return distrust is not None and bool(distrust(offset_bytes, length_bytes))

    def check_unchanged(self) -> None:
        self._inner.check_unchanged()

    def interrupt(self) -> None:
        self._inner.interrupt()

    def lend(self) -> ByteSource:
        """Return it for a load, whose end leaves it open: what it kept is shared behind that."""
        return cast("ByteSource", _Lent(self))

    def close(self) -> None:
        self._inner.close()
        self._drop()

    def finish(self, header: ZSEHeader) -> OpenFile | None:
        """Complete the file, check every digest, and give it its name in the cache.

        Nothing is completed where another process of this machine has put it there.

        Returns:
            The file, open; None where the disk was full.

        Raises:
            StoreError, FormatError: What is missing cannot be read.
            OSError: It cannot be written.
        """
        if not self._is_whole:
            return None

        def complete() -> Path:
            _write(self._fd, 0, memoryview(CONTAINER.seal(header.to_bytes())))
            for region in header.regions:
                self._complete(region)
            return self._path

        return open_file(Cache(self._settings).adopt(self._location, complete))

    def _drop(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _complete(self, region: Region) -> None:
        if self._digest_of(region) == region.sha256:
            return
        while True:
            for start in range(region.offset_bytes, region.end_bytes, _READ_BYTES):
                view = memoryview(bytearray(min(_READ_BYTES, region.end_bytes - start)))
                self._inner.read_into(start, view)
                _write(self._fd, start, view)
            found = self._digest_of(region)
            if found == region.sha256:
                return
            if not self.distrust(region.offset_bytes, region.length_bytes):
                check_sha256(f"{region.name} of {self.name}", found, region.sha256)

    def _digest_of(self, region: Region) -> str:
        digest = hashlib.sha256()
        view = memoryview(bytearray(min(_READ_BYTES, max(region.length_bytes, 1))))
        for start in range(region.offset_bytes, region.end_bytes, _READ_BYTES):
            part = view[: min(_READ_BYTES, region.end_bytes - start)]
            count = os.preadv(self._fd, [part], start)
            digest.update(part[:count])
        return digest.hexdigest()


class _Lent:
    """A source that somebody else closes."""

    def __init__(self, source: KeepingSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def close(self) -> None:
        """Leave it open."""


def _new_download(location: Location, settings: Settings) -> Path:
    """Return a new path in the cache whose form says that it is an unfinished download.

    So what a killed process leaves there is counted, and removed, like any other.

    Raises:
        OSError: The cache's folder cannot be made.
    """
    make_cache_folder(settings.cache_dir)
    folder = Cache(settings).folder
    folder.mkdir(exist_ok=True)
    model = hashlib.sha256(location.url.encode()).hexdigest()[:32]
    return folder / f".{model}.zse.{secrets.token_hex(6)}.part"


def _write(fd: int, offset_bytes: int, view: memoryview) -> None:
    while view:
        count = os.pwrite(fd, view, offset_bytes)
        view, offset_bytes = view[count:], offset_bytes + count
