"""Uploads: one PUT when small, parallel parts when large, and nothing left behind on failure.

Every body carries its Content-MD5, so the server refuses bytes that changed on the way. The whole
file's SHA-256 goes into the object's metadata. Afterwards size, ETag and digest are read back.
"""

from __future__ import annotations

import base64
import hashlib
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from zse.errors import StoreError
from zse.records import record
from zse.store.base import CHUNK_BYTES, Progress, Transfer
from zse.store.checksum import etag_md5
from zse.store.s3_client import translated_errors
from zse.store.s3_unfinished import (
    UploadRecord,
    abort_upload,
    forget_record,
    list_parts,
    list_unfinished,
    load_record,
    save_record,
)
from zse.store.upload_source import UploadSource
from zse.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from zse.store.location import Location

SHA256_KEY = "zse-sha256"
PART_BYTES = 2 * CHUNK_BYTES
MAX_PARTS = 10_000
WRITERS = 4
_OTHER_WRITER = "Something else wrote the same key at the same time, or the server is faulty."


def part_bytes_for(size_bytes: int) -> int:
    """Return the length of a part: 16 MiB, or more when 10,000 of them would not be enough."""
    needed = -(-size_bytes // MAX_PARTS)
    return max(PART_BYTES, -(-needed // MIB) * MIB)


def upload_file(
    client: Any,
    local_path: Path,
    location: Location,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    resume: bool = False,
) -> Transfer:
    """Upload a file and check what arrived.

    Args:
        cache_dir: Where an upload that may be taken up again is remembered.
        resume: Take up what a killed upload of the same file left and remove other unfinished
            uploads to the same key; leave what was sent if this upload fails.

    Raises:
        NotFoundError: The file or the bucket does not exist.
        StoreError: The upload failed, or the file changed meanwhile.
    """
    with UploadSource(local_path) as source:
        upload = _Upload(
            client=client,
            source=source,
            location=location,
            cache_dir=cache_dir,
            sha256=source.sha256(),
            progress=progress or (lambda _done, _total: None),
            resume=resume,
        )
        with translated_errors(location):
            sent = upload.run()
            upload.check_written(sent.etag)
    return Transfer(
        size_bytes=source.size_bytes,
        sha256=upload.sha256,
        verified=True,
        resumed_bytes=sent.resumed_bytes,
    )


@record
class _Part:
    """One part that the server has."""

    number: int
    etag: str
    md5: bytes
    length: int


@record
class _Sent:
    """``etag`` is what S3 should now show: the MD5, or the MD5 of the parts' MD5s."""

    etag: str
    resumed_bytes: int = 0


@record
class _Upload:
    """One file on its way to one key."""

    client: Any
    source: UploadSource
    location: Location
    cache_dir: Path
    sha256: str
    progress: Progress
    resume: bool

    def run(self) -> _Sent:
        part_bytes = part_bytes_for(self.source.size_bytes)
        taken_up = self._take_up(part_bytes) if self.resume else None
        if self.source.size_bytes <= PART_BYTES:
            return self._send_whole()
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="zse-s3-write") as pool:
            upload_id = taken_up or self._create(pool, part_bytes)
            try:
                return self._send_parts(pool, upload_id, part_bytes)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # At once: whoever stops this process may not wait for the parts in flight.
                self._abandon(upload_id)
                pool.shutdown(wait=True)
                # Once more: a part that landed after an abort would be kept.
                self._abandon(upload_id)
                raise

    def check_written(self, etag: str) -> None:
        """Read back size, digest and ETag of a fresh object."""
        head = self.client.head_object(**self._target)
        place, size_bytes = self.location.url, self.source.size_bytes
        found = (head["ContentLength"], head.get("Metadata", {}).get(SHA256_KEY))
        if found != (size_bytes, self.sha256):
            raise StoreError(
                f"{place} reads back as {found[0]} bytes, sha256 {found[1]}; written were "
                f"{size_bytes} bytes, sha256 {self.sha256}",
                hint=_OTHER_WRITER,
            )
        shown = head.get("ETag", "")
        headers = head["ResponseMetadata"]["HTTPHeaders"]
        if etag_md5(shown, headers) and shown.strip('"') != etag:
            raise StoreError(
                f"{place} has the ETag {shown}; the bytes sent have {etag}", hint=_OTHER_WRITER
            )

    def _send_whole(self) -> _Sent:
        body = self.source.read(0, self.source.size_bytes)
        self.source.require_unchanged()
        md5 = _md5(body)
        self.client.put_object(
            **self._target, Body=body, ContentMD5=_base64(md5), Metadata=self._metadata
        )
        self.progress(self.source.size_bytes, self.source.size_bytes)
        return _Sent(etag=md5.hex())

    def _create(self, pool: ThreadPoolExecutor, part_bytes: int) -> str:
        """Begin an upload. In a thread, so that a signal cannot lose the answer."""
        answer = pool.submit(
            self.client.create_multipart_upload, **self._target, Metadata=self._metadata
        )
        try:
            upload_id = str(answer.result()["UploadId"])
        except (KeyboardInterrupt, SystemExit):
            if answer.exception() is None:
                self._abandon(str(answer.result()["UploadId"]))
            raise
        save_record(self._record(upload_id, part_bytes), self.cache_dir)
        return upload_id

    def _send_parts(self, pool: ThreadPoolExecutor, upload_id: str, part_bytes: int) -> _Sent:
        held = list_parts(self.client, self.location, upload_id) if self.resume else {}
        count = -(-self.source.size_bytes // part_bytes)
        futures: list[Future[tuple[_Part, bool]]] = [
            pool.submit(self._send_part, upload_id, number, part_bytes, held.get(number))
            for number in range(1, count + 1)
        ]
        done_bytes = resumed_bytes = 0
        for future in as_completed(futures):
            part, was_there = future.result()
            done_bytes += part.length
            resumed_bytes += part.length * was_there
            self.progress(done_bytes, self.source.size_bytes)
        self.source.require_unchanged()
        parts = [future.result()[0] for future in futures]
        listing = [{"PartNumber": part.number, "ETag": part.etag} for part in parts]
        self.client.complete_multipart_upload(
            **self._target, UploadId=upload_id, MultipartUpload={"Parts": listing}
        )
        forget_record(self.location, self._endpoint, self.cache_dir)
        combined = _md5(b"".join(part.md5 for part in parts))
        return _Sent(etag=f"{combined.hex()}-{len(parts)}", resumed_bytes=resumed_bytes)

    def _send_part(
        self, upload_id: str, number: int, part_bytes: int, held: tuple[str, int] | None
    ) -> tuple[_Part, bool]:
        """Send a part unless the server holds the same; tell whether it did."""
        offset = (number - 1) * part_bytes
        body = self.source.read(offset, min(part_bytes, self.source.size_bytes - offset))
        md5 = _md5(body)
        if held is not None and (held[0].strip('"'), held[1]) == (md5.hex(), len(body)):
            return _Part(number=number, etag=held[0], md5=md5, length=len(body)), True
        answer = self.client.upload_part(
            **self._target,
            UploadId=upload_id,
            PartNumber=number,
            Body=body,
            ContentMD5=_base64(md5),
        )
        return _Part(number=number, etag=answer["ETag"], md5=md5, length=len(body)), False

    def _take_up(self, part_bytes: int) -> str:
        """Return the id of the upload to go on with, or nothing; remove the others to this key."""
        record = load_record(self.location, self._endpoint, self.cache_dir)
        ours = ""
        if record is not None and record == self._record(record.upload_id, part_bytes):
            ours = record.upload_id
        found = ""
        for upload in list(list_unfinished(self.client, self.location)):
            if upload.key != self.location.key:
                continue
            if upload.upload_id == ours:
                found = ours
            else:
                abort_upload(self.client, self.location.bucket, upload.key, upload.upload_id)
        return found

    def _abandon(self, upload_id: str) -> None:
        if not self.resume:
            abort_upload(self.client, self.location.bucket, self.location.key, upload_id)
            forget_record(self.location, self._endpoint, self.cache_dir)

    def _record(self, upload_id: str, part_bytes: int) -> UploadRecord:
        return UploadRecord(
            url=self.location.url,
            endpoint=self._endpoint,
            upload_id=upload_id,
            sha256=self.sha256,
            size_bytes=self.source.size_bytes,
            part_bytes=part_bytes,
        )

    @property
    def _target(self) -> dict[str, str]:
        return {"Bucket": self.location.bucket, "Key": self.location.key}

    @property
    def _metadata(self) -> dict[str, str]:
        return {SHA256_KEY: self.sha256}

    @property
    def _endpoint(self) -> str:
        return str(self.client.meta.endpoint_url)


def _md5(data: bytes | bytearray) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
