"""Uploads: one PUT when small, parallel parts when large, and nothing left behind on failure.

Every body carries its Content-MD5, so the server refuses bytes that changed on the way. The whole
file's SHA-256 goes into the object's metadata. Afterwards size, ETag and digest are read back.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import stat
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from zse.errors import NotFoundError, StoreError
from zse.store.base import CHUNK_BYTES, MEBIBYTE, Progress, Transfer
from zse.store.s3_client import translated_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.store.location import Location

SHA256_KEY = "zse-sha256"
PART_BYTES = 2 * CHUNK_BYTES
MAX_PARTS = 10_000
WRITERS = 4
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32}(?:-\d+)?)"?')


def part_bytes_for(size_bytes: int) -> int:
    """Return the length of a part: 16 MiB, or more when 10,000 of them would not be enough."""
    needed = -(-size_bytes // MAX_PARTS)
    return max(PART_BYTES, -(-needed // MEBIBYTE) * MEBIBYTE)


def upload_file(
    client: Any, local_path: Path, location: Location, progress: Progress | None = None
) -> Transfer:
    """Upload a file and check what arrived.

    Raises:
        NotFoundError: The file or the bucket does not exist.
        StoreError: The upload failed (no part of it is kept), or the file changed meanwhile.
    """
    with _open_source(local_path) as file_descriptor:
        before = _signature(file_descriptor)
        size_bytes = before[0]
        digest = _sha256_of(file_descriptor, size_bytes)
        upload = _Upload(client, file_descriptor, location, size_bytes, digest, progress)
        etag = upload.run(lambda: _require_unchanged(file_descriptor, before, local_path))
    _check_written(client, location, size_bytes, digest, etag)
    return Transfer(size_bytes=size_bytes, sha256=digest, verified=True)


class _Upload:
    """One file on its way to one key."""

    def __init__(
        self,
        client: Any,
        file_descriptor: int,
        location: Location,
        size_bytes: int,
        digest: str,
        progress: Progress | None,
    ) -> None:
        self._client = client
        self._file_descriptor = file_descriptor
        self._location = location
        self._target = {"Bucket": location.bucket, "Key": location.key}
        self._size_bytes = size_bytes
        self._metadata = {SHA256_KEY: digest}
        self._progress = progress or (lambda _done, _total: None)

    def run(self, before_publishing: Callable[[], None]) -> str:
        """Send everything; return the ETag that S3 should now show (MD5, or MD5 of MD5s)."""
        with translated_errors(self._location):
            if self._size_bytes <= PART_BYTES:
                return self._send_whole(before_publishing)
            return self._send_parts(before_publishing)

    def _send_whole(self, before_publishing: Callable[[], None]) -> str:
        body = _read_exactly(self._file_descriptor, 0, self._size_bytes)
        before_publishing()
        md5 = _md5(body)
        self._client.put_object(
            **self._target, Body=body, ContentMD5=_base64(md5), Metadata=self._metadata
        )
        self._progress(self._size_bytes, self._size_bytes)
        return md5.hex()

    def _send_parts(self, before_publishing: Callable[[], None]) -> str:
        created = self._client.create_multipart_upload(**self._target, Metadata=self._metadata)
        identity = {**self._target, "UploadId": created["UploadId"]}
        try:
            parts = self._parts(identity)
            before_publishing()
            listing = [{"PartNumber": n, "ETag": etag} for n, etag, _ in parts]
            self._client.complete_multipart_upload(**identity, MultipartUpload={"Parts": listing})
        except BaseException:
            # The first failure is the one to report; an abort that fails too must not hide it.
            with contextlib.suppress(Exception):
                self._client.abort_multipart_upload(**identity)
            raise
        combined = _md5(b"".join(md5 for _, _, md5 in parts))
        return f"{combined.hex()}-{len(parts)}"

    def _parts(self, identity: dict[str, str]) -> list[tuple[int, str, bytes]]:
        """Send the parts in parallel; return (number, ETag, MD5) in order."""
        part_bytes = part_bytes_for(self._size_bytes)

        def send(number: int) -> tuple[int, str, bytes, int]:
            offset = (number - 1) * part_bytes
            length = min(part_bytes, self._size_bytes - offset)
            body = _read_exactly(self._file_descriptor, offset, length)
            md5 = _md5(body)
            answer = self._client.upload_part(
                **identity, PartNumber=number, Body=body, ContentMD5=_base64(md5)
            )
            return number, answer["ETag"], md5, length

        count = -(-self._size_bytes // part_bytes)
        sent: list[tuple[int, str, bytes]] = []
        done_bytes = 0
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="zse-s3-write") as pool:
            futures: list[Future[tuple[int, str, bytes, int]]] = [
                pool.submit(send, number) for number in range(1, count + 1)
            ]
            try:
                for future in as_completed(futures):
                    number, etag, md5, length = future.result()
                    sent.append((number, etag, md5))
                    done_bytes += length
                    self._progress(done_bytes, self._size_bytes)
            finally:
                # Parts in flight end before the abort: one that landed after it would be kept.
                pool.shutdown(wait=True, cancel_futures=True)
        return sorted(sent)


def _check_written(
    client: Any, location: Location, size_bytes: int, digest: str, etag: str
) -> None:
    """Read back size, digest and ETag of a fresh object."""
    with translated_errors(location):
        head = client.head_object(Bucket=location.bucket, Key=location.key)
    found = (head["ContentLength"], head.get("Metadata", {}).get(SHA256_KEY))
    if found != (size_bytes, digest):
        raise StoreError(
            f"{location.url} reads back as {found[0]} bytes, sha256 {found[1]}; written were "
            f"{size_bytes} bytes, sha256 {digest}",
            hint="Something else wrote the same key at the same time, or the server is faulty.",
        )
    # An ETag is an MD5 unless the server encrypts with keys of its own; then it means nothing.
    opaque = "SSECustomerAlgorithm" in head or "kms" in head.get("ServerSideEncryption", "")
    shown = _MD5_ETAG.fullmatch(head.get("ETag", ""))
    if shown and not opaque and shown[1] != etag:
        raise StoreError(
            f"{location.url} has the ETag {shown[1]}; the bytes sent have {etag}",
            hint="Something else wrote the same key at the same time, or the server is faulty.",
        )


@contextlib.contextmanager
def _open_source(path: Path) -> Iterator[int]:
    try:
        file_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist", hint="Check the path.") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", hint="Check it.") from error
    try:
        if not stat.S_ISREG(os.fstat(file_descriptor).st_mode):
            raise StoreError(f"{path} is not a file", hint="Upload files one by one.")
        yield file_descriptor
    finally:
        os.close(file_descriptor)


def _signature(file_descriptor: int) -> tuple[int, int]:
    status = os.fstat(file_descriptor)
    return status.st_size, status.st_mtime_ns


def _require_unchanged(file_descriptor: int, before: tuple[int, int], path: Path) -> None:
    if _signature(file_descriptor) != before:
        raise StoreError(
            f"{path} changed while it was uploaded",
            hint="Upload it again when nothing writes to it.",
        )


def _sha256_of(file_descriptor: int, size_bytes: int) -> str:
    digest = hashlib.sha256()
    for offset in range(0, size_bytes, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size_bytes - offset)
        digest.update(_read_exactly(file_descriptor, offset, length))
    return digest.hexdigest()


def _read_exactly(file_descriptor: int, offset: int, length: int) -> bytes:
    buffer = memoryview(bytearray(length))
    filled = 0
    while filled < length:
        try:
            count = os.preadv(file_descriptor, [buffer[filled:]], offset + filled)
        except OSError as error:
            raise StoreError(
                f"cannot read the file to upload: {error.strerror}", hint="Check its disk."
            ) from error
        if count == 0:
            raise StoreError(
                "the file became shorter while it was uploaded",
                hint="Upload it again when nothing writes to it.",
            )
        filled += count
    return buffer.tobytes()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
