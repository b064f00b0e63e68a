"""Objects in S3 and in servers that speak its protocol.

They are read like all objects behind an address. What a person's machine does beside, listing and
writing, is done by boto3, which is imported for it alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from zse.store.base import Entry, Progress, Transfer
from zse.store.checksum import Checksum, etag_md5
from zse.store.remote import RemoteStore
from zse.store.s3_client import client_of, list_below
from zse.store.s3_object import S3Place, account_of
from zse.store.s3_upload import upload_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.settings import Settings
    from zse.store.location import Location


class S3Store(RemoteStore):
    """One object, or one prefix for ``list``. Only writing and listing need boto3."""

    def __init__(self, location: Location, settings: Settings) -> None:
        super().__init__(location, settings)
        self._account = account_of(settings.aws, settings.proxies)

    def checksum(self) -> Checksum | None:
        """Return the SHA-256 of our own uploads; else the MD5 that the ETag is, if it is one."""
        return super().checksum() or self._etag_checksum

    def list(self) -> Iterator[Entry]:
        """Yield the objects whose key is this one or lies below it, sorted by key."""
        for item in list_below(self._client, self._location, "list_objects_v2", "Contents"):
            place = replace(self._location, key=item["Key"])
            yield Entry(location=place, size_bytes=int(item["Size"]))

    def put_file(
        self, local_path: Path, *, progress: Progress | None = None, resume: bool = False
    ) -> Transfer:
        self._forget()
        cache_dir = self._settings.cache_dir
        return upload_file(
            self._client, local_path, self._location, cache_dir, progress, resume=resume
        )

    @property
    def _client(self) -> Any:
        return client_of(self._settings.aws, self._settings.proxies)

    @cached_property
    def _etag_checksum(self) -> Checksum | None:
        facts = self._opened().facts
        found = etag_md5(facts.version, facts.headers)
        if found is None:
            return None
        md5, count = found
        if count == 0:
            return Checksum(algorithm="md5", value=md5)
        place, pool = S3Place(self._location, self._account), self._account.pool()
        try:
            first, last = (place.part_bytes(pool, number) for number in (1, count))
        except OSError:
            return None
        if not first or last != facts.size_bytes - (count - 1) * first:
            return None  # the server does not tell where parts end, or they differ
        return Checksum(algorithm="md5-parts", value=f"{md5}-{count}", part_bytes=first)

    def _forget(self) -> None:
        super()._forget()
        vars(self).pop("_etag_checksum", None)
