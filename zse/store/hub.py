"""Files and folders of a model hub, ``hf://owner/name@revision/file``, with nothing but HTTP."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin

from zse.errors import StoreError
from zse.store.base import Entry
from zse.store.checksum import SHA256_HEX, Checksum
from zse.store.http.pool import HttpPool, same_server
from zse.store.http.retry import RETRIED, patiently
from zse.store.hub_file import COMMIT, DIGEST_HEADER, HubPlace
from zse.store.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.settings import Settings
    from zse.store.location import Location

_Listing = list[dict[str, Any]]
_NEXT_PAGE = re.compile(r'<([^>]+)>;\s*rel="next"')
_MAX_PAGE_BYTES = 64 << 20
_MAX_PAGES = 1000
"""Of a listing; the hub puts up to a thousand files on each."""


class HubStore(RemoteStore):
    """One file of a repository, or a folder of it for ``list``."""

    def __init__(self, location: Location, settings: Settings) -> None:
        super().__init__(location, settings)
        self._place = HubPlace(location, settings.hub)
        self._pool = HttpPool(settings.proxies)

    def version(self) -> str:
        """Return the digest of the file, by whichever rule the hub has for it."""
        return self._opened().facts.headers[DIGEST_HEADER]

    def checksum(self) -> Checksum | None:
        digest = self.version()
        if SHA256_HEX.fullmatch(digest):
            return Checksum(algorithm="sha256", value=digest)
        if COMMIT.fullmatch(digest):
            return Checksum(algorithm="git-blob", value=digest)
        return None

    def list(self) -> Iterator[Entry]:
        """Yield this file, or the files below this folder, sorted by path."""
        key = self._location.key.rstrip("/")
        found = []
        for item in self._tree():
            path, size_bytes = item.get("path"), item.get("size", 0)
            if item.get("type") == "file" and isinstance(path, str) and isinstance(size_bytes, int):
                found.append((path, size_bytes))
        for path, size_bytes in sorted(found):
            if not key or path == key or path.startswith(key + "/"):
                yield Entry(location=replace(self._location, key=path), size_bytes=size_bytes)

    def _tree(self) -> Iterator[dict[str, Any]]:
        """Yield what the repository holds, page by page."""
        revision = quote(self._location.revision or "main", safe="")
        url = f"{self._place.endpoint}/api/models/{self._location.repository}/tree/{revision}"
        url += "?recursive=true"
        for _ in range(_MAX_PAGES):
            try:
                listing, url = patiently(partial(self._page, url))
            except RETRIED as error:
                raise StoreError(
                    f"{self._location} cannot be listed: {error}",
                    hint="Check this machine's network and proxy, and HF_ENDPOINT.",
                ) from error
            yield from listing
            if not url:
                return
        raise StoreError(
            f"{self._location}: its listing has more than {_MAX_PAGES} pages",
            hint="Name one file of it, hf://owner/name/path, or check HF_ENDPOINT.",
        )

    def _page(self, url: str) -> tuple[_Listing, str]:
        with self._pool.ask(url, {}, private=self._place.private_headers) as answer:
            self._place.check(answer)
            body = answer.read(_MAX_PAGE_BYTES)
            link = _NEXT_PAGE.search(answer.header("Link"))
        try:
            listing = json.loads(body)
        except ValueError:
            listing = None
        if not isinstance(listing, list) or not all(isinstance(item, dict) for item in listing):
            raise StoreError(
                f"{self._location}: the hub's listing is not readable", hint="Check HF_ENDPOINT."
            )
        following = urljoin(url, link[1]) if link else ""
        return listing, following if following and same_server(following, url) else ""
