"""What stores behind an address share: an object opened when it is needed and read in parallel."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.store.base import CHUNK_BYTES, Entry
from zse.store.checksum import SHA256_HEX, Checksum
from zse.store.objects import open_object
from zse.store.s3_errors import MissingBucketError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.settings import Settings
    from zse.store.http.ranged import RangedObject
    from zse.store.location import Location

READERS = 8
SHA256_HEADER = "x-amz-meta-zse-sha256"
"""Where S3 tells the digest that an upload of ours stored."""
_REPR_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):", re.IGNORECASE)


class RemoteStore:
    """One object that can be read; see ``Store``."""

    def __init__(self, location: Location, settings: Settings) -> None:
        self._location, self._settings = location, settings
        self._lock = threading.Lock()
        self._object: RangedObject | None = None

    @property
    def location(self) -> Location:
        return self._location

    def exists(self) -> bool:
        """Return whether the object is there. A missing bucket is an error, not a no."""
        self._forget()
        try:
            self._opened()
        except MissingBucketError:
            raise
        except NotFoundError:
            return False
        return True

    def size(self) -> int:
        return self._opened().size_bytes

    def checksum(self) -> Checksum | None:
        """Return the digest in the headers that stores use: ours, RFC 9530's."""
        headers = self._opened().facts.headers
        value = headers.get(SHA256_HEADER, "")
        if not value and (match := _REPR_DIGEST.search(headers.get("repr-digest", ""))):
            try:
                value = base64.b64decode(match[1], validate=True).hex()
            except binascii.Error:
                return None
        return Checksum(algorithm="sha256", value=value) if SHA256_HEX.fullmatch(value) else None

    def version(self) -> str:
        return self._opened().facts.version

    def list(self) -> Iterator[Entry]:
        """Yield this object: the web has no listings."""
        yield Entry(location=self._location, size_bytes=self.size())

    def read_chunks(self, offset: int = 0) -> Iterator[memoryview]:
        """Yield the object from ``offset`` in order, read by several threads a few chunks ahead."""
        source = self._opened()
        size_bytes = source.size_bytes

        def fill(start: int, buffer: bytearray) -> tuple[memoryview, bytearray]:
            view = memoryview(buffer)[: min(CHUNK_BYTES, size_bytes - start)]
            source.read_into(start, view, stop=stop)
            return view, buffer

        stop = threading.Event()
        idle: list[bytearray] = []
        ahead: deque[Future[tuple[memoryview, bytearray]]] = deque()
        with ThreadPoolExecutor(READERS, thread_name_prefix="zse-read") as pool:
            try:
                for start in range(offset, size_bytes, CHUNK_BYTES):
                    buffer = idle.pop() if idle else bytearray(min(CHUNK_BYTES, size_bytes))
                    ahead.append(pool.submit(fill, start, buffer))
                    if len(ahead) == 2 * READERS:
                        view, buffer = ahead.popleft().result()
                        yield view
                        idle.append(buffer)
                while ahead:
                    yield ahead.popleft().result()[0]
            finally:
                # Reads in flight end at their next mebibyte: a stopped copy ends at once.
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _opened(self) -> RangedObject:
        with self._lock:
            if self._object is None:
                self._object = open_object(self._location, self._settings, prefix_bytes=1)
            return self._object

    def _forget(self) -> None:
        """Let the next question find the object anew: it may be another by now."""
        with self._lock:
            self._object = None
