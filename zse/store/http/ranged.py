"""An object behind HTTP, read in ranges straight into the caller's memory: the one reader of all.

Strict, as every read of a model must be: only a 206 with the Content-Range that was asked for
counts, and each range carries the version that was found first, so an object that is replaced half
way is an error and not a mixture. A connection that is cut is taken up again at the byte it
reached. A header is read with it, a file fetched, and a GPU fed.
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeVar

from zse.errors import LoadCancelledError, SourceChangedError, StoreError, ZSEError
from zse.records import record
from zse.store.http.pool import same_server
from zse.store.http.retry import (
    ATTEMPTS,
    BUSY_STATUSES,
    RETRIED,
    BusyServerError,
    UnreachableError,
    patiently,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zse.store.http.answer import Answer
    from zse.store.http.pool import Follow, HttpPool

_Result = TypeVar("_Result")
PREFIX_BYTES = 256 << 10
"""Read when a model is opened: the header of most, and small sections behind it."""
_STOPPABLE_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_GONE = frozenset({401, 403, 404, 410})
_TRY_AGAIN = "Check the network and the server, then try again."
_NO_WAY = "Check the address (for s3:// also AWS_ENDPOINT_URL_S3), the network and the proxy."
_CUT = "the connection was cut"
_NO_RANGES = "The server or a proxy does not honour ranges; use one that does."


@record
class Request:
    """A GET of the whole object; the reader adds the range."""

    url: str
    private: Mapping[str, str] = field(default_factory=dict)
    """Headers for the server of ``url`` alone."""
    follow: Follow = "anywhere"


@record
class Facts:
    """What the first answer told of an object."""

    size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case name -> value."""

    @property
    def validator(self) -> tuple[str, str] | None:
        """The header that makes a request fail when the object was replaced."""
        # A weak tag does not promise equal bytes, and If-Match never accepts one.
        etag, modified = self.headers.get("etag", ""), self.headers.get("last-modified", "")
        if etag and not etag.startswith("W/"):
            return "If-Match", etag
        return ("If-Unmodified-Since", modified) if modified else None

    @property
    def version(self) -> str:
        return self.headers.get("etag") or self.headers.get("last-modified", "")


class Place(Protocol):
    """Where an object is, how it is asked for, and what a refusal means."""

    @property
    def name(self) -> str:
        """The address, for messages."""

    def request(self) -> Request:
        """Return how the object is asked for now.

        Raises:
            ZSEError: Nobody may ask.
        """

    def describe(self, pool: HttpPool) -> Facts | None:
        """Ask what the object is; None where its first range tells that.

        Raises:
            OSError, BusyServerError: It should be asked again.
            ZSEError: The server refuses.
        """

    def refusal(self, answer: Answer) -> ZSEError | None:
        """Return what an answer other than a range means; None when it should be asked again."""


class RangedObject:
    """One object; a ``ByteSource``. Opening it is one GET, which also tells its size and version.

    Args:
        pool: Connections; closed with the object.
        prefix_bytes: How much is read at once, and then need not be asked for again.

    Raises:
        NotFoundError: There is no such object.
        StoreError: The server refuses, cannot be reached or does not honour ranges.
    """

    kind = "http"

    def __init__(self, place: Place, pool: HttpPool, *, prefix_bytes: int = PREFIX_BYTES) -> None:
        self._place, self._pool = place, pool
        self._stopped = threading.Event()
        self._found_at = ""
        self.prefix = b""
        self._facts = self._patiently(lambda: place.describe(pool), self._stopped)
        if self._facts is None or prefix_bytes > 1:
            self._patiently(lambda: self._open(prefix_bytes), self._stopped)

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def facts(self) -> Facts:
        """What was told of it when it was opened."""
        assert self._facts is not None
        return self._facts

    @property
    def size_bytes(self) -> int:
        return self.facts.size_bytes

    def read_into(
        self, offset_bytes: int, view: memoryview, *, stop: threading.Event | None = None
    ) -> None:
        """Fill ``view``; see ``ByteSource``. One that is read with ``stop`` may be left half way.

        Raises:
            SourceChangedError: The object was replaced since it was opened.
            LoadCancelledError: ``interrupt`` was called, or ``stop`` is set.
            StoreError: It ends before the range does, or the server failed too often.
        """
        end = offset_bytes + len(view)
        if offset_bytes < 0 or end > self.size_bytes:
            raise StoreError(
                f"{self.name} has {self.size_bytes} bytes; the range asked for ends at {end}",
                hint="The object is shorter than expected: upload it again.",
            )
        held = self.prefix[offset_bytes:end]
        if len(held) == len(view):
            view[:] = held
            return
        filled = 0

        def read_rest() -> None:
            nonlocal filled
            # Whole, so that the interpreter is asked for once; or in pieces that can be left.
            piece_bytes = _STOPPABLE_BYTES if stop is not None else len(view)
            for count in self._read_range(offset_bytes + filled, end, view[filled:], piece_bytes):
                filled += count
                if stop is not None and stop.is_set():
                    break
            if filled < len(view):
                raise ConnectionError(_CUT)

        self._patiently(read_rest, stop or self._stopped, lambda: offset_bytes + filled)

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        """Whether a read of this range waits for the network."""
        return offset_bytes + length_bytes > len(self.prefix)

    def check_unchanged(self) -> None:
        """Do nothing: every range was read at one version."""

    def interrupt(self) -> None:
        self._stopped.set()
        self._pool.interrupt()

    def close(self) -> None:
        self._pool.close()

    # --- one request ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _ask(self, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Ask where the last redirect led; where that is over (it may be signed), ask for anew."""
        request = self._place.request()
        for url in (self._found_at, request.url) if self._found_at else (request.url,):
            private = request.private if same_server(url, request.url) else {}
            with self._pool.ask(url, headers, private=private, follow=request.follow) as answer:
                if answer.status in _GONE and url != request.url:
                    continue
                if answer.status == 206 and answer.url != request.url:
                    self._found_at = answer.url
                yield answer
                return

    def _open(self, prefix_bytes: int) -> None:
        with self._ask({"Range": f"bytes=0-{prefix_bytes - 1}"}) as answer:
            if answer.status == 416:
                self._facts = self._described_empty(answer)
                return
            first, last, size_bytes = self._checked_range(answer)
            if (first, last) != (0, min(prefix_bytes, size_bytes) - 1):
                raise self._other_range(answer, f"bytes 0-{prefix_bytes - 1}")
            if self._facts is not None and self._facts.size_bytes != size_bytes:
                raise self._replaced()
            prefix = answer.read(prefix_bytes)
        if len(prefix) != last + 1:  # nothing of it counts: it may be another when asked again
            raise ConnectionError(_CUT)
        self.prefix = prefix
        # What the place said first holds: a server that it leads to may know less.
        self._facts = self._facts or Facts(size_bytes=size_bytes, headers=answer.headers)

    def _described_empty(self, answer: Answer) -> Facts:
        """Tell an object that has no range because it has no bytes from a server's fault."""
        found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
        if found is not None and int(found[3]) == 0:
            return Facts(size_bytes=0, headers=answer.headers)
        with self._ask({}) as whole:
            if whole.status == 200 and whole.length == 0:
                return Facts(size_bytes=0, headers=whole.headers)
        raise self._other_range(answer, "a range")

    def _read_range(
        self, first: int, end: int, view: memoryview, piece_bytes: int
    ) -> Iterator[int]:
        """Ask once for a range; yield the counts of bytes as they arrive."""
        headers = {"Range": f"bytes={first}-{end - 1}"}
        name, version = self.facts.validator or ("", "")
        if name:
            headers[name] = version
        filled = 0
        with self._ask(headers) as answer:
            found = self._checked_range(answer)
            has_other_tag = name == "If-Match" and answer.header("ETag") not in (version, "")
            if found[2] != self.size_bytes or has_other_tag:
                raise self._replaced()
            if found[:2] != (first, end - 1):
                raise self._other_range(answer, f"bytes {first}-{end - 1}/{self.size_bytes}")
            while filled < len(view):
                with view[filled : filled + piece_bytes] as rest:
                    count = answer.readinto(rest)
                if not count:
                    return
                filled += count
                yield count

    # --- judging --------------------------------------------------------------------------------

    def _checked_range(self, answer: Answer) -> tuple[int, int, int]:
        """Return first, last and total of the answer's Content-Range."""
        if answer.status == 206:
            match = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
            if match is None or match[1] is None:
                raise self._other_range(answer, "a range")
            return int(match[1]), int(match[2]), int(match[3])
        if answer.status in (412, 416):
            raise self._replaced()
        if answer.status == 200:
            raise StoreError(
                f"{self.name}: the server answered 200 {answer.reason} to a range", hint=_NO_RANGES
            )
        problem = self._place.refusal(answer)
        if problem is not None and answer.status not in BUSY_STATUSES:
            raise problem
        said = f"the server answered {answer.status} {answer.reason}"
        hint = problem.hint if problem is not None else ""
        raise BusyServerError(str(problem or said), answer.header("Retry-After"), hint=hint)

    def _other_range(self, answer: Answer, wanted: str) -> StoreError:
        return StoreError(
            f"{self.name}: asked for {wanted!r}, the server answered {answer.status} with "
            f"Content-Range {answer.header('Content-Range')!r}",
            hint=_NO_RANGES,
        )

    def _replaced(self) -> SourceChangedError:
        return SourceChangedError(f"{self.name} was replaced while it was read")

    def _patiently(
        self,
        action: Callable[[], _Result],
        stop: threading.Event,
        position: Callable[[], int] | None = None,
    ) -> _Result:
        """Return what ``action`` returns; connections that are cut are tried again."""
        problem: Exception | None = None
        try:
            if not stop.is_set():
                return patiently(action, stop=stop)
        except RETRIED as error:
            problem = error
        if stop.is_set():
            raise LoadCancelledError(f"reading {self.name} was stopped") from problem
        if isinstance(problem, UnreachableError):
            raise StoreError(
                f"{self.name} cannot be reached: {problem.strerror}", hint=_NO_WAY
            ) from problem
        where = f" at byte {position()}" if position is not None else ""
        raise StoreError(
            f"{self.name}: {ATTEMPTS} attempts failed, the last one{where}: {problem}",
            hint=getattr(problem, "hint", "") or _TRY_AGAIN,
        ) from problem
