"""A model from replicas into the cache: every byte is held against a digest of its header.

Groups and sections come beside each other, each into its place of a file under another name. One
that has a wrong digest comes again, from others, before anything is given its name.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.format.container import check_sha256
from zse.format.spec import CONTAINER
from zse.store.cache import Cache
from zse.store.local import LocalWriter, translated_os_error

if TYPE_CHECKING:
    from pathlib import Path

    from zse.format.spec import Region
    from zse.settings import Settings
    from zse.store.location import Location
    from zse.stream.peers.striped import StripedSource
    from zse.stream.remote import RemoteReader

_LOG = logging.getLogger("zse.stream")
_READERS = 8
_READ_BYTES = 8 << 20


def fetch(
    reader: RemoteReader, source: StripedSource, location: Location, settings: Settings
) -> Path:
    """Return the local copy of a file, which comes from replicas where it is not there.

    Raises:
        StoreError, FormatError: Neither replicas nor the origin have the bytes that the header
            promises.
        DiskFullError: There is no room for it.
    """

    def copy(path: Path) -> None:
        with _SparseWriter(path, source.size_bytes) as writer:
            _fill(reader, source, writer)
        _LOG.info(
            "the model came from replicas",
            extra={"peer_bytes": source.peer_bytes, "origin_bytes": source.origin_bytes},
        )

    return Cache(settings).fetch(location, copy=copy)


def _fill(reader: RemoteReader, source: StripedSource, writer: _SparseWriter) -> None:
    header = reader.header
    raw = CONTAINER.seal(header.to_bytes())
    writer.put(0, raw)
    regions = [region for region in header.regions if region.length_bytes]

    def bring(region: Region) -> None:
        while True:
            digest = hashlib.sha256()
            for start in range(region.offset_bytes, region.end_bytes, _READ_BYTES):
                count = min(_READ_BYTES, region.end_bytes - start)
                view = memoryview(mmap.mmap(-1, count))
                source.read_into(start, view)
                digest.update(view)
                writer.put(start, view)
            if digest.hexdigest() == region.sha256:
                return
            if not source.distrust(region.offset_bytes, region.length_bytes):
                check_sha256(f"{region.name} of {reader.path}", digest.hexdigest(), region.sha256)

    with ThreadPoolExecutor(_READERS, "zse-read") as pool:
        waiting = [pool.submit(bring, region) for region in regions]
        try:
            for each in waiting:
                each.result()
        except BaseException:
            source.interrupt()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


class _SparseWriter(LocalWriter):
    """Writes a file of a known length, wherever in it; what is not written is zeros."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        super().__init__(path)
        self._size_bytes = size_bytes

    def put(self, offset_bytes: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                count = os.pwrite(self._file_descriptor, view, offset_bytes)
                view, offset_bytes = view[count:], offset_bytes + count
        except OSError as error:
            raise translated_os_error(error, self._path, "write") from error

    def _open(self) -> int:
        descriptor = super()._open()
        try:
            os.ftruncate(descriptor, self._size_bytes)
        except BaseException:
            os.close(descriptor)
            self._temporary.unlink()
            raise
        return descriptor
