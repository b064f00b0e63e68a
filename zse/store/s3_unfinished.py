"""Uploads in parts that nobody finished: they cost money and show in no listing.

A killed process leaves one. A record in the cache folder tells which file it was of, so that the
same push can go on with it; without a record it can only be removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.store.cache_use import make_cache_folder
from zse.store.s3_client import list_below, translated_errors
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.store.location import Location


@record
class UnfinishedUpload:
    """One of them."""

    key: str
    upload_id: str
    started: str
    """ISO 8601, as the server tells; empty when it does not."""


@record
class UploadRecord:
    """Which file an upload is of."""

    url: str
    endpoint: str
    upload_id: str
    sha256: str
    size_bytes: int
    part_bytes: int


def list_unfinished(client: Any, location: Location) -> Iterator[UnfinishedUpload]:
    """Yield the unfinished uploads to this key, or to what lies below it.

    Raises:
        NotFoundError: The bucket does not exist.
        StoreError: The storage failed.
    """
    for item in list_below(client, location, "list_multipart_uploads", "Uploads"):
        started = item.get("Initiated")
        yield UnfinishedUpload(
            key=item["Key"],
            upload_id=item["UploadId"],
            started=started.isoformat() if started else "",
        )


def list_parts(client: Any, location: Location, upload_id: str) -> dict[int, tuple[str, int]]:
    """Return number -> (ETag, length in bytes) of the parts that an upload has."""
    with translated_errors(location):
        pages = client.get_paginator("list_parts").paginate(
            Bucket=location.bucket, Key=location.key, UploadId=upload_id
        )
        return {
            int(part["PartNumber"]): (str(part["ETag"]), int(part["Size"]))
            for page in pages
            for part in page.get("Parts", ())
        }


def abort_upload(client: Any, bucket: str, key: str, upload_id: str) -> None:
    """Remove an upload and its parts.

    An abort that fails is not reported: what made it necessary is, and a later push removes it.
    """
    with contextlib.suppress(Exception):
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)


def save_record(record: UploadRecord, cache_dir: Path) -> None:
    """Remember an upload that has begun. Where nothing can be written, it cannot be resumed."""
    path = _record_path(record.url, record.endpoint, cache_dir)
    with contextlib.suppress(OSError):
        make_cache_folder(cache_dir)
        write_whole(path, json.dumps(asdict(record), sort_keys=True))


def load_record(location: Location, endpoint: str, cache_dir: Path) -> UploadRecord | None:
    """Return what was remembered of an upload to this place."""
    try:
        found = json.loads(_record_path(location.url, endpoint, cache_dir).read_text())
        record = UploadRecord(**found)
    except (OSError, ValueError, TypeError):
        return None
    return record if (record.url, record.endpoint) == (location.url, endpoint) else None


def forget_record(location: Location, endpoint: str, cache_dir: Path) -> None:
    with contextlib.suppress(OSError):
        _record_path(location.url, endpoint, cache_dir).unlink(missing_ok=True)


def _record_path(url: str, endpoint: str, cache_dir: Path) -> Path:
    name = hashlib.sha256(f"{endpoint}\n{url}".encode()).hexdigest()[:32]
    return cache_dir / "pushes" / f"{name}.json"
