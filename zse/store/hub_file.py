"""One file of a model hub: how it is asked for.

A branch is turned into its commit by the first answer, and everything is read at that commit.
Large files come with their SHA-256, small ones with git's digest of a blob.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

from zse.errors import NotFoundError, StoreError, ZSEError
from zse.store.http.ranged import Facts, Request
from zse.store.http.retry import BUSY_STATUSES, BusyServerError
from zse.store.location import parse_location

if TYPE_CHECKING:
    from zse.settings import HubSettings
    from zse.store.http.answer import Answer
    from zse.store.http.pool import HttpPool
    from zse.store.location import Location

DIGEST_HEADER = "x-linked-etag"
COMMIT = re.compile(r"[0-9a-f]{40}")
_SIZE = re.compile(r"[0-9]{1,18}")
_REFUSALS = {
    "GatedRepo": (
        "{} is gated: the hub wants an account that accepted its licence",
        "Accept the licence on the repository's page, then set HF_TOKEN to your token.",
    ),
    "RevisionNotFound": ("{} has no revision {!r}", "Check the name of the branch, tag or commit."),
    "RepoNotFound": (
        "{} does not exist on the hub, or is private",
        "Check the name; for a private repository set HF_TOKEN.",
    ),
}
"""What the hub's words for a refusal mean of a repository and a revision, and what to do."""
_Refusal = TypeVar("_Refusal", bound=ZSEError)


def refusal_of(kind: type[_Refusal], code: str, repository: str, revision: str | None) -> _Refusal:
    """Return what the hub means by GatedRepo, RevisionNotFound or RepoNotFound."""
    message, hint = _REFUSALS[code]
    return kind(message.format(repository, revision), hint=hint)


class HubPlace:
    """See ``Place``.

    Args:
        location: The file; a folder of it may be listed, not asked for.

    Raises:
        RefusedError: The hub's address is not encrypted.
    """

    def __init__(self, location: Location, hub: HubSettings) -> None:
        self._location, self._hub = location, hub
        self.endpoint = hub.endpoint.rstrip("/")
        parse_location(self.endpoint)  # refuses what is not encrypted
        self._commit = ""
        self.name = str(location)

    @property
    def private_headers(self) -> dict[str, str]:
        token = self._hub.token or self._saved_token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def request(self) -> Request:
        location = self._location
        revision = quote(self._commit or location.revision or "main", safe="")
        path = quote(location.key, safe="/-_.~")
        url = f"{self.endpoint}/{location.repository}/resolve/{revision}/{path}"
        return Request(url=url, private=self.private_headers)

    def describe(self, pool: HttpPool) -> Facts:
        """Ask the hub, whose own answer has the digest; the server that it redirects to does not.

        Raises:
            OSError, BusyServerError: It should be asked again.
            NotFoundError: There is no such file.
            StoreError: The hub refuses, or this is none.
        """
        asked = self.request()
        with pool.ask(asked.url, {}, private=asked.private, method="HEAD", follow="home") as answer:
            self.check(answer)
            commit = answer.header("X-Repo-Commit")
            etag = (answer.header(DIGEST_HEADER) or answer.header("ETag")).removeprefix("W/")
            size = answer.header("X-Linked-Size") or answer.header("Content-Length")
        if not COMMIT.fullmatch(commit) or not _SIZE.fullmatch(size):
            raise StoreError(
                f"{self.name}: the answer of {urlsplit(self.endpoint).netloc} has no "
                f"commit or no size, so it is not a hub's",
                hint="Check HF_ENDPOINT.",
            )
        self._commit = commit
        return Facts(size_bytes=int(size), headers={DIGEST_HEADER: etag.strip('"')})

    def check(self, answer: Answer) -> None:
        """Do nothing if the hub answers what it was asked.

        Raises:
            BusyServerError: It should be asked again.
            NotFoundError, StoreError: It refuses.
        """
        if answer.status in BUSY_STATUSES:
            raise BusyServerError(f"the hub answered {answer.status}", answer.header("Retry-After"))
        if answer.status >= 400:
            raise self.refusal(answer)

    def refusal(self, answer: Answer) -> ZSEError:
        repository, code = self._location.repository, answer.header("X-Error-Code")
        if code == "EntryNotFound":
            return NotFoundError(
                f"{self._location} does not exist",
                hint=f"See what there is: zse ls hf://{repository}",
            )
        if code not in _REFUSALS and answer.status in (401, 404):
            code = "RepoNotFound"
        if code in _REFUSALS:
            kind = StoreError if code == "GatedRepo" else NotFoundError
            return refusal_of(kind, code, repository, self._location.revision or "main")
        return StoreError(
            f"{self._location}: the hub answered {answer.status} {answer.reason}",
            hint="Check the name and HF_TOKEN, then try again.",
        )

    def _saved_token(self) -> str:
        try:
            return self._hub.token_path.read_text().strip()
        except OSError:
            return ""
