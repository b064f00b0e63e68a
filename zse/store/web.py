"""Objects behind https://: read in ranges, held to one version, followed to where they lie."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from typing import TYPE_CHECKING, NoReturn, TypeVar

from zse.errors import NotFoundError, StoreError, UsageError
from zse.records import record
from zse.store.base import Entry
from zse.store.checksum import SHA256_HEX, Checksum
from zse.store.http_client import CUT_ERRORS, HttpClient, same_server
from zse.store.ranged import RangedReader
from zse.store.retry import ATTEMPTS, BUSY_STATUSES, BusyServerError, UnreachableError, patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.store.base import Progress, Transfer, Writer
    from zse.store.http_client import Answer
    from zse.store.location import Location

_Result = TypeVar("_Result")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_REPR_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]+):", re.IGNORECASE)
_TRY_AGAIN: tuple[type[Exception], ...] = (*CUT_ERRORS, BusyServerError)
_GONE = frozenset({401, 403, 404, 410})


@record
class Facts:
    """What the first answer told of an object."""

    size_bytes: int
    validator: tuple[str, str] | None = None
    """The header that makes a request fail when the object was replaced."""
    version: str = ""
    checksum: Checksum | None = None


class WebStore(RangedReader):
    """One file behind a web address."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._client = HttpClient()
        self._lock = threading.Lock()
        self._facts: Facts | None = None
        self._found_at = ""

    @property
    def location(self) -> Location:
        """The place this store stands for."""
        return self._location

    def exists(self) -> bool:
        """Return whether the object is there."""
        with self._lock:
            self._facts = None
        try:
            self._described()
        except NotFoundError:
            return False
        return True

    def size(self) -> int:
        """Return the object's length in bytes."""
        return self._described().size_bytes

    def recorded_sha256(self) -> str | None:
        """Return the digest that the server tells, if it does."""
        checksum = self.checksum()
        return checksum.value if checksum and checksum.algorithm == "sha256" else None

    def checksum(self) -> Checksum | None:
        """Return the best digest of the object that the server tells."""
        return self._described().checksum

    def version(self) -> str:
        """Return the server's word for this version."""
        return self._described().version

    def list(self) -> Iterator[Entry]:
        """Yield this file: the web has no listings."""
        yield Entry(location=self._location, size_bytes=self.size())

    def put_file(
        self,
        local_path: Path,  # noqa: ARG002
        *,
        progress: Progress | None = None,  # noqa: ARG002
        resume: bool = False,  # noqa: ARG002
    ) -> Transfer:
        """Refuse: such places are read only."""
        self._refuse_writing()

    def open_writer(self) -> Writer:
        """Refuse: such places are read only."""
        self._refuse_writing()

    def delete(self) -> None:
        """Refuse: such places are read only."""
        self._refuse_writing()

    # --- asking ---------------------------------------------------------------------------------

    def _address(self) -> str:
        """Return where the object is asked for."""
        return self._location.address

    def _private_headers(self) -> dict[str, str]:
        """Return headers for the first server alone."""
        return {}

    def _describe(self) -> Facts:
        """Ask what the object is."""
        # Not HEAD: a signed address is often good for one method, and servers differ on ranges.
        answer = self._ask(self._address(), {"Range": "bytes=0-0"})
        try:
            empty = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
            if answer.status == 416 and empty is not None and int(empty[3]) == 0:
                return Facts(size_bytes=0, version=_version(answer))
            size_bytes = self._checked_range(answer)[2]
            answer.read_small()
        finally:
            answer.close()
        self._found_at = answer.url
        return Facts(
            size_bytes=size_bytes,
            validator=_validator(answer),
            version=_version(answer),
            checksum=_told_checksum(answer),
        )

    def _open_range(self, first: int, last: int) -> Answer:
        facts = self._described()
        headers = {"Range": f"bytes={first}-{last}"}
        if facts.validator is not None:
            headers[facts.validator[0]] = facts.validator[1]
        answer = self._ask(self._found_at or self._address(), headers)
        if answer.status in _GONE and self._found_at != self._address():
            # A redirect's signed target expires during a long copy: ask for a new one.
            answer.close()
            answer = self._ask(self._address(), headers)
        try:
            found = self._checked_range(answer)
            if found[2] != facts.size_bytes:
                self._replaced()
            if found[:2] != (first, last):
                self._refuse_range(answer, f"bytes {first}-{last}/{facts.size_bytes}")
        except BaseException:
            answer.close()
            raise
        self._found_at = answer.url
        return answer

    def _cut_errors(self) -> tuple[type[Exception], ...]:
        return CUT_ERRORS

    def _described(self) -> Facts:
        with self._lock:
            if self._facts is None:
                self._facts = self._patiently(self._describe)
            return self._facts

    def _ask(self, url: str, headers: dict[str, str]) -> Answer:
        # What a redirect led to is asked directly, and must not see what is for the first server.
        private = self._private_headers() if same_server(url, self._address()) else {}
        return self._client.open(url, headers, private=private)

    def _patiently(self, action: Callable[[], _Result]) -> _Result:
        """Do something that may be tried again."""
        try:
            return patiently(action, retried=_TRY_AGAIN)
        except UnreachableError as error:
            raise StoreError(
                f"{self._location} cannot be reached: {error.strerror}",
                hint="Check the address and this machine's network and proxy.",
            ) from error
        except _TRY_AGAIN as error:
            raise StoreError(
                f"{self._location}: {ATTEMPTS} attempts failed, the last one with: {error}",
                hint="Check the address and the network, then try again.",
            ) from error

    # --- judging --------------------------------------------------------------------------------

    def _checked_range(self, answer: Answer) -> tuple[int, int, int]:
        """Return first, last and total of the answer's Content-Range."""
        if answer.status in BUSY_STATUSES:
            raise BusyServerError(
                f"the server answered {answer.status} {answer.reason}",
                answer.header("Retry-After"),
            )
        if answer.status in (412, 416):
            self._replaced()
        if answer.status != 206:
            self._refuse(answer)
        match = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
        if match is None or match[1] is None:
            self._refuse_range(answer, "a range")
        return int(match[1]), int(match[2]), int(match[3])

    def _refuse(self, answer: Answer) -> NoReturn:
        what = f"{self._location}: the server answered {answer.status} {answer.reason}"
        if answer.status in (404, 410):
            raise NotFoundError(f"{self._location} does not exist", hint="Check the address.")
        if answer.status == 200:
            raise StoreError(
                f"{what} to a range",
                hint="The server or a proxy does not honour ranges; use one that does.",
            )
        raise StoreError(what, hint="Check the address and the permissions.")

    def _refuse_range(self, answer: Answer, wanted: str) -> NoReturn:
        found = answer.header("Content-Range")
        raise StoreError(
            f"{self._location}: asked for {wanted!r}, the server answered {answer.status} with "
            f"Content-Range {found!r}",
            hint="The server or a proxy does not honour ranges; use one that does.",
        )

    def _replaced(self) -> NoReturn:
        raise StoreError(
            f"{self._location} was replaced while it was read", hint="Start the copy again."
        )

    def _refuse_writing(self) -> NoReturn:
        raise UsageError(
            f"{self._location} can be read, not written",
            hint="Write to a path or to s3://bucket/key.",
        )


def _validator(answer: Answer) -> tuple[str, str] | None:
    # A weak tag does not promise equal bytes, and If-Match never accepts one.
    etag = answer.header("ETag")
    if etag and not etag.startswith("W/"):
        return "If-Match", etag
    modified = answer.header("Last-Modified")
    return ("If-Unmodified-Since", modified) if modified else None


def _version(answer: Answer) -> str:
    return answer.header("ETag") or answer.header("Last-Modified")


def _told_checksum(answer: Answer) -> Checksum | None:
    """Return the digest in the headers that stores use: ours, RFC 9530's."""
    value = answer.header("x-amz-meta-zse-sha256")
    if not value and (match := _REPR_DIGEST.search(answer.header("Repr-Digest"))):
        try:
            value = base64.b64decode(match[1], validate=True).hex()
        except binascii.Error:
            return None
    if not SHA256_HEX.fullmatch(value):
        return None
    return Checksum(algorithm="sha256", value=value)
