"""Objects in S3 and in servers that speak its protocol.

Reads are ranged, parallel and strict: only a 206 with the Content-Range that was asked for counts,
and every range carries ``If-Match``: an object replaced half way is an error and not a mixture.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zse.errors import NotFoundError, StoreError, UsageError
from zse.store.base import CHUNK_BYTES, Entry, Progress, Transfer
from zse.store.location import Location
from zse.store.s3_client import MissingBucketError, default_client, translated_errors
from zse.store.s3_upload import SHA256_KEY, upload_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

READERS = 8
ATTEMPTS = 5
_FIRST_PAUSE_SECONDS = 0.2


class S3Writer:
    """Collects the bytes in a temporary file and uploads them when the block ends well.

    The digest is stored in the object's metadata, which S3 fixes before the first byte is sent.
    """

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(tempfile.NamedTemporaryFile(prefix="zse-upload-"))
        return self

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append ``data``; return its length in bytes."""
        return self._file.write(data)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            if kind is None:
                self._file.flush()
                self._store.put_file(Path(self._file.name))


class S3Store:
    """One object, or one prefix for ``list``."""

    def __init__(self, location: Location, client: Any = None) -> None:
        self._location = location
        self._client = default_client() if client is None else client
        self._lock = threading.Lock()
        self._head: dict[str, Any] | None = None

    @property
    def location(self) -> Location:
        """The place this store stands for."""
        return self._location

    def exists(self) -> bool:
        """Return whether the object is there. A missing bucket is an error, not a no."""
        self._forget()
        try:
            self._attributes()
        except MissingBucketError:
            raise
        except NotFoundError:
            return False
        return True

    def size(self) -> int:
        """Return the object's length in bytes."""
        return int(self._attributes()["ContentLength"])

    def recorded_sha256(self) -> str | None:
        """Return the digest that the upload stored as metadata, if it did."""
        metadata: dict[str, str] = self._attributes().get("Metadata", {})
        return metadata.get(SHA256_KEY)

    def version(self) -> str:
        """Return the server's ETag."""
        return str(self._attributes().get("ETag", ""))

    def read_range(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``offset``."""
        buffer = bytearray(length)
        self.read_into(offset, buffer)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``; go on where a cut connection stopped."""
        view = memoryview(buffer).cast("B")
        size_bytes = self.size()
        if offset < 0 or offset + len(view) > size_bytes:
            raise StoreError(
                f"{self._location.url} has {size_bytes} bytes; the range asked for ends at "
                f"{offset + len(view)}",
                hint="The object is shorter than expected: upload it again.",
            )
        filled = 0
        problem: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            before = filled
            filled, problem = self._read_once(offset, view, before)
            if filled == len(view):
                return
        raise StoreError(
            f"{self._location.url}: the connection was cut {ATTEMPTS} times, the last time "
            f"at byte {offset + filled}: {problem}",
            hint="Check the network and the server, then try again.",
        ) from problem

    def read_chunks(self) -> Iterator[bytearray]:
        """Yield the whole object in order, read by several threads a few chunks ahead."""
        size_bytes = self.size()
        starts = iter(range(0, size_bytes, CHUNK_BYTES))

        def read(start: int) -> bytearray:
            buffer = bytearray(min(CHUNK_BYTES, size_bytes - start))
            self.read_into(start, buffer)
            return buffer

        with ThreadPoolExecutor(READERS, thread_name_prefix="zse-s3-read") as pool:
            ahead: deque[Future[bytearray]] = deque()
            try:
                for start in starts:
                    ahead.append(pool.submit(read, start))
                    if len(ahead) == 2 * READERS:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def list(self) -> Iterator[Entry]:
        """Yield the objects whose key is this one or lies below it, sorted by key."""
        bucket, key = self._location.bucket, self._location.key
        below = key if not key or key.endswith("/") else key + "/"
        with translated_errors(self._location):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=bucket, Prefix=key
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    if item["Key"] == key or item["Key"].startswith(below):
                        place = Location(scheme="s3", bucket=bucket, key=item["Key"])
                        yield Entry(location=place, size_bytes=int(item["Size"]))

    def put_file(self, local_path: Path, *, progress: Progress | None = None) -> Transfer:
        """Upload ``local_path`` here."""
        self._require_object()
        self._forget()
        return upload_file(self._client, local_path, self._location, progress)

    def open_writer(self) -> S3Writer:
        """Return a writer for a new object at this key."""
        self._require_object()
        return S3Writer(self)

    def delete(self) -> None:
        """Remove the object if it is there."""
        self._require_object()
        self._forget()
        with translated_errors(self._location):
            self._client.delete_object(Bucket=self._location.bucket, Key=self._location.key)

    def _read_once(
        self, offset: int, view: memoryview, filled: int
    ) -> tuple[int, Exception | None]:
        """Ask once for what is missing; return how much is there now and what went wrong."""
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        first, last = offset + filled, offset + len(view) - 1
        if first > last:
            return filled, None
        try:
            with contextlib.closing(self._open_range(first, last)) as body:
                while filled < len(view) and (count := body.readinto(view[filled:])):
                    filled += count
        except (HTTPClientError, IncompleteReadError, HTTPError, OSError) as error:
            return filled, error
        return filled, None

    def _open_range(self, first: int, last: int) -> Any:
        """Ask for bytes ``first`` to ``last`` and return the body, if it is exactly that."""
        attributes = self._attributes()
        with translated_errors(self._location):
            answer = self._client.get_object(
                Bucket=self._location.bucket,
                Key=self._location.key,
                Range=f"bytes={first}-{last}",
                IfMatch=attributes["ETag"],
            )
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        found = answer.get("ContentRange", "")
        wanted = f"bytes {first}-{last}/{attributes['ContentLength']}"
        if status != 206 or found != wanted:
            answer["Body"].close()
            raise StoreError(
                f"{self._location.url}: asked for {wanted!r}, the server answered {status} with "
                f"Content-Range {found!r}",
                hint="The server or a proxy does not honour ranges; use one that does.",
            )
        return answer["Body"]

    def _attributes(self) -> dict[str, Any]:
        """Return the answer to HEAD, asked for once."""
        self._require_object()
        with self._lock:
            if self._head is None:
                with translated_errors(self._location, client=self._client):
                    head: dict[str, Any] = self._client.head_object(
                        Bucket=self._location.bucket, Key=self._location.key
                    )
                self._head = head
            return self._head

    def _forget(self) -> None:
        with self._lock:
            self._head = None

    def _require_object(self) -> None:
        if self._location.is_prefix:
            raise UsageError(
                f"{self._location.url} names a folder, not an object",
                hint=f"Add a name: {self._location.url.rstrip('/')}/NAME",
            )
