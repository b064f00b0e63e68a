"""Objects in S3 and in servers that speak its protocol.

Reads are ranged, parallel and strict: only a 206 with the Content-Range that was asked for counts,
and every range carries ``If-Match``: an object replaced half way is an error and not a mixture.
Ranges are asked for by a signed address and read straight into memory, which takes a third of the
CPU time that boto3 takes. Whatever is not the range is asked for again through boto3, which knows
how to wait for a busy server and what an error means.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zse.errors import NotFoundError, StoreError, UsageError
from zse.store.base import Entry, Progress, Transfer
from zse.store.checksum import SHA256_HEX, Checksum, etag_md5
from zse.store.http_client import CUT_ERRORS, CertificateError
from zse.store.location import Location
from zse.store.ranged import RangedReader
from zse.store.retry import BusyServerError, pause
from zse.store.s3_client import MissingBucketError, default_client, translated_errors
from zse.store.s3_direct import DirectReader
from zse.store.s3_upload import SHA256_KEY, is_opaque_etag, upload_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from zse.store.ranged import Body


class S3Writer:
    """Collects the bytes in a temporary file and uploads them when the block ends well.

    The digest is stored in the object's metadata, which S3 fixes before the first byte is sent.
    """

    def __init__(self, store: S3Store) -> None:
        self._store = store
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        # A file without a name: not even a killed process leaves it behind.
        self._file = self._stack.enter_context(tempfile.TemporaryFile())
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
                self._store.put_file(Path(f"/proc/self/fd/{self._file.fileno()}"))


class S3Store(RangedReader):
    """One object, or one prefix for ``list``."""

    def __init__(self, location: Location, client: Any = None) -> None:
        self._location = location
        self._client = default_client() if client is None else client
        self._lock = threading.Lock()
        self._head: dict[str, Any] | None = None
        self._direct: DirectReader | None = DirectReader(self._client, location)
        self._etag_checksum: Checksum | None = None
        self._is_checksum_known = False

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

    def checksum(self) -> Checksum | None:
        """Return the SHA-256 of our own uploads; else the MD5 that the ETag is, if it is one."""
        recorded = self.recorded_sha256() or ""
        if SHA256_HEX.fullmatch(recorded):
            return Checksum(algorithm="sha256", value=recorded)
        with self._lock:
            if not self._is_checksum_known:
                self._etag_checksum = self._checksum_of_etag()
                self._is_checksum_known = True
            return self._etag_checksum

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

    def put_file(
        self, local_path: Path, *, progress: Progress | None = None, resume: bool = False
    ) -> Transfer:
        """Upload ``local_path`` here."""
        self._require_object()
        self._forget()
        return upload_file(self._client, local_path, self._location, progress, resume=resume)

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

    def _cut_errors(self) -> tuple[type[Exception], ...]:
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError

        return HTTPClientError, IncompleteReadError, HTTPError, *CUT_ERRORS

    def _checksum_of_etag(self) -> Checksum | None:
        head = self._attributes_locked()
        found = None if is_opaque_etag(head) else etag_md5(head.get("ETag", ""))
        if found is None:
            return None
        md5, count = found
        if count == 0:
            return Checksum(algorithm="md5", value=md5)
        first, last = (self._part_bytes(number) for number in (1, count))
        if not first or last != int(head["ContentLength"]) - (count - 1) * first:
            return None  # the server does not tell where parts end, or they differ
        return Checksum(algorithm="md5-parts", value=f"{md5}-{count}", part_bytes=first)

    def _part_bytes(self, number: int) -> int:
        """Return the length of a part of the upload; 0 when the server does not say."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            head = self._client.head_object(
                Bucket=self._location.bucket, Key=self._location.key, PartNumber=number
            )
        except (BotoCoreError, ClientError):
            return 0
        return int(head["ContentLength"])

    def _open_range(self, first: int, last: int) -> Any:
        """Ask for bytes ``first`` to ``last`` and return the body, if it is exactly that."""
        attributes = self._attributes()
        wanted = f"bytes {first}-{last}/{attributes['ContentLength']}"
        if body := self._open_directly(first, last, wanted, attributes["ETag"]):
            return body
        with translated_errors(self._location):
            answer = self._client.get_object(
                Bucket=self._location.bucket,
                Key=self._location.key,
                Range=f"bytes={first}-{last}",
                IfMatch=attributes["ETag"],
            )
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        found = answer.get("ContentRange", "")
        if status != 206 or found != wanted:
            answer["Body"].close()
            raise StoreError(
                f"{self._location.url}: asked for {wanted!r}, the server answered {status} with "
                f"Content-Range {found!r}",
                hint="The server or a proxy does not honour ranges; use one that does.",
            )
        return answer["Body"]

    def _open_directly(self, first: int, last: int, wanted: str, etag: str) -> Body | None:
        if self._direct is None:
            return None
        try:
            return self._direct.open(first, last, wanted, etag)
        except CertificateError:
            self._direct = None  # boto3 may have been given the certificate
        except BusyServerError as error:
            pause(1, error, threading.Event())
        return None

    def _attributes(self) -> dict[str, Any]:
        """Return the answer to HEAD, asked for once."""
        self._require_object()
        with self._lock:
            return self._attributes_locked()

    def _attributes_locked(self) -> dict[str, Any]:
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
            self._is_checksum_known = False

    def _require_object(self) -> None:
        if self._location.is_prefix:
            raise UsageError(
                f"{self._location.url} names a folder, not an object",
                hint=f"Add a name: {self._location.url.rstrip('/')}/NAME",
            )
