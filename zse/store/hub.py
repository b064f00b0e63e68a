"""Single files of a model hub: ``hf://owner/name@revision/file``, with nothing but HTTP.

A branch is turned into its commit by the first answer, and everything is read at that commit.
Large files come with their SHA-256, small ones with git's digest of a blob.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urljoin, urlsplit

from zse.errors import NotFoundError, StoreError, UsageError
from zse.settings import load_settings, subprocess_environment
from zse.store.base import Entry
from zse.store.checksum import SHA256_HEX, Checksum
from zse.store.http_client import same_server
from zse.store.location import Location, parse_location
from zse.store.retry import BUSY_STATUSES, BusyServerError
from zse.store.web import Facts, WebStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.store.http_client import Answer

_Listing = list[dict[str, Any]]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT_PAGE = re.compile(r'<([^>]+)>;\s*rel="next"')
_MAX_PAGE_BYTES = 64 << 20
_TOKEN_HINT = "Accept the licence on the repository's page, then set HF_TOKEN to your token."


class HubStore(WebStore):
    """One file of a repository, or a folder of it for ``list``."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self._endpoint = load_settings().hub.endpoint.rstrip("/")
        parse_location(self._endpoint)  # refuses what is not encrypted
        self._commit = ""

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
                yield Entry(location=self._place(path), size_bytes=size_bytes)

    # --- asking ---------------------------------------------------------------------------------

    def _address(self) -> str:
        if self._location.is_prefix:
            raise UsageError(
                f"{self._location} names a folder, not a file",
                hint=f"Add a name: {self._location.url.rstrip('/')}/NAME",
            )
        revision = quote(self._commit or self._location.revision or "main", safe="")
        path = quote(self._location.key, safe="/-_.~")
        return f"{self._endpoint}/{self._location.repository}/resolve/{revision}/{path}"

    def _private_headers(self) -> dict[str, str]:
        token = load_settings().hub.token or _saved_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _describe(self) -> Facts:
        # The hub's own answer has the digest; the server that it redirects to does not.
        answer = self._client.open(
            self._address(),
            {},
            method="HEAD",
            private=self._private_headers(),
            follow_elsewhere=False,
        )
        try:
            self._check(answer)
            commit = answer.header("X-Repo-Commit")
            etag = (answer.header("X-Linked-Etag") or answer.header("ETag")).removeprefix("W/")
            size = answer.header("X-Linked-Size") or answer.header("Content-Length")
        finally:
            answer.close()
        if not _COMMIT.fullmatch(commit) or not size.isdigit():
            raise StoreError(
                f"{self._location}: the answer of {urlsplit(self._endpoint).netloc} has no "
                f"commit or no size, so it is not a hub's",
                hint="Check HF_ENDPOINT.",
            )
        self._commit = commit
        etag = etag.strip('"')
        return Facts(size_bytes=int(size), version=etag, checksum=_checksum_of(etag))

    def _tree(self) -> Iterator[dict[str, Any]]:
        """Yield what the repository holds, page by page."""
        revision = quote(self._location.revision or "main", safe="")
        url = f"{self._endpoint}/api/models/{self._location.repository}/tree/{revision}"
        url += "?recursive=true"
        while url:
            listing, url = self._patiently(partial(self._page, url))
            yield from listing

    def _page(self, url: str) -> tuple[_Listing, str]:
        answer = self._client.open(url, {}, private=self._private_headers())
        try:
            self._check(answer)
            body = bytearray()
            while (piece := answer.read_small()) and len(body) < _MAX_PAGE_BYTES:
                body += piece
            link = _NEXT_PAGE.search(answer.header("Link"))
        finally:
            answer.close()
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

    def _place(self, path: str) -> Location:
        return Location(
            scheme="hf",
            repository=self._location.repository,
            revision=self._location.revision,
            key=path,
        )

    # --- judging --------------------------------------------------------------------------------

    def _check(self, answer: Answer) -> None:
        if answer.status in BUSY_STATUSES:
            raise BusyServerError(f"the hub answered {answer.status}", answer.header("Retry-After"))
        if answer.status >= 400:
            self._refuse(answer)

    def _refuse(self, answer: Answer) -> NoReturn:
        repository, code = self._location.repository, answer.header("X-Error-Code")
        if code == "GatedRepo":
            raise StoreError(
                f"{repository} is gated: the hub wants an account that accepted its licence",
                hint=_TOKEN_HINT,
            )
        if code == "RevisionNotFound":
            raise NotFoundError(
                f"{repository} has no revision {self._location.revision or 'main'!r}",
                hint="Check the name of the branch, tag or commit.",
            )
        if code == "EntryNotFound":
            raise NotFoundError(
                f"{self._location} does not exist",
                hint=f"See what there is: zse ls hf://{repository}",
            )
        if code == "RepoNotFound" or answer.status in (401, 404):
            raise NotFoundError(
                f"{repository} does not exist on the hub, or is private",
                hint="Check the name; for a private repository set HF_TOKEN.",
            )
        raise StoreError(
            f"{self._location}: the hub answered {answer.status} {answer.reason}",
            hint="Check the name and HF_TOKEN, then try again.",
        )


def _checksum_of(etag: str) -> Checksum | None:
    if SHA256_HEX.fullmatch(etag):
        return Checksum(algorithm="sha256", value=etag)
    if _COMMIT.fullmatch(etag):
        return Checksum(algorithm="git-blob", value=etag)
    return None


def _saved_token() -> str:
    """Return the token that ``hf auth login`` saved, where the hub's own tools look for it."""
    environ = subprocess_environment()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    path = Path(environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        return path.read_text().strip()
    except OSError:
        return ""
