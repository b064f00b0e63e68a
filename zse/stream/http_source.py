"""An object behind HTTP, read in ranges straight into the caller's memory.

Strict, as every read of a model must be: only a 206 with the Content-Range that was asked for
counts, and each range carries ``If-Match``, so an object that is replaced half way is an error and
not a mixture. A connection that is cut is taken up again at the byte it reached.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, NoReturn

from zse.errors import NotFoundError, StoreError
from zse.stream.errors import LoadCancelledError, SourceChangedError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.stream.http_connection import HttpAnswer
    from zse.stream.http_pool import HttpPool

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.2
PREFIX_BYTES = 256 << 10
"""Read when an object is opened: the header of most models, and small sections behind it."""

_BUSY = {429, 500, 502, 503, 504}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class _Retry(Exception):  # noqa: N818 - no error: the next attempt goes on
    """The server asks to try again."""


class HttpRangeSource:
    """One object. Opening it is one GET, which also tells its size and its ETag.

    Args:
        pool: Connections to the server.
        path: Percent-encoded path and query of the object.
        name: The address to show in messages.
        sign: Returns the headers that authorize a GET.
        explain: Called when the server refuses; may raise an error that says more.

    Raises:
        NotFoundError: There is no such object.
        StoreError: The server refuses, cannot be reached or does not honour ranges.
    """

    def __init__(
        self,
        pool: HttpPool,
        path: str,
        *,
        name: str,
        sign: Callable[[], dict[str, str]] = dict,
        explain: Callable[[], object] = int,
    ) -> None:
        self._pool = pool
        self._path = path
        self._name = name
        self._sign = sign
        self._explain = explain
        self._etag = ""
        self._size_bytes = 0
        self._waiting = threading.Event()
        self.prefix = b""
        """The first bytes of the object, which need not be asked for again."""
        self._with_attempts(self._open, 0)

    @property
    def name(self) -> str:
        """The address."""
        return self._name

    @property
    def kind(self) -> str:
        """How the bytes came."""
        return "http"

    @property
    def size_bytes(self) -> int:
        """Length of the object."""
        return self._size_bytes

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``."""
        end = offset_bytes + len(view)
        if offset_bytes < 0 or end > self._size_bytes:
            raise StreamError(
                f"{self._name} has {self._size_bytes} bytes; the range asked for ends at {end}"
            )
        held = self.prefix[offset_bytes:end]
        if len(held) == len(view):
            view[:] = held
            return
        filled = 0

        def read_rest() -> bool:
            nonlocal filled
            for count in self._read_range(offset_bytes + filled, end, view[filled:]):
                filled += count
            return filled == len(view)

        self._with_attempts(read_rest, lambda: offset_bytes + filled)

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        """Whether a read of this range waits for the network."""
        return offset_bytes + length_bytes > len(self.prefix)

    def check_unchanged(self) -> None:
        """Do nothing: every range was read under ``If-Match``."""

    def interrupt(self) -> None:
        """Cut the connections in use."""
        self._pool.interrupt()
        self._waiting.set()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    # --- one request ----------------------------------------------------------------------------

    def _open(self) -> bool:
        headers = {**self._sign(), "Range": f"bytes=0-{PREFIX_BYTES - 1}"}
        with self._pool.get(self._path, headers) as answer:
            if answer.status == 416:
                self._refuse(answer, "it is empty")
            found = self._checked_range(answer)
            if found[0] != 0 or found[1] != min(PREFIX_BYTES, found[2]) - 1:
                self._refuse_range(answer, f"bytes 0-{PREFIX_BYTES - 1}")
            etag = answer.getheader("ETag", "")
            prefix = answer.read()
        if len(prefix) != found[1] + 1:
            return False
        # A weak tag does not promise equal bytes, and If-Match never accepts one.
        self._etag = "" if etag.startswith("W/") else etag
        self.prefix, self._size_bytes = prefix, found[2]
        return True

    def _read_range(self, first: int, end: int, view: memoryview) -> Iterator[int]:
        """Ask once for a range; yield the counts of bytes as they arrive."""
        headers = {**self._sign(), "Range": f"bytes={first}-{end - 1}"}
        if self._etag:
            headers["If-Match"] = self._etag
        filled = 0
        with self._pool.get(self._path, headers) as answer:
            found = self._checked_range(answer)
            if found[2] != self._size_bytes or answer.getheader("ETag", "") not in (
                self._etag,
                "",
            ):
                self._replaced()
            if found != (first, end - 1, self._size_bytes):
                self._refuse_range(answer, f"bytes {first}-{end - 1}/{self._size_bytes}")
            while filled < len(view):
                with view[filled:] as rest:
                    count = answer.readinto(rest)
                if not count:
                    return
                filled += count
                yield count

    def _checked_range(self, answer: HttpAnswer) -> tuple[int, int, int]:
        """Return first, last and total of the answer's Content-Range."""
        if answer.status in _BUSY:
            raise _Retry(f"the server answered {answer.status} {answer.reason}")
        if answer.status in (412, 416):
            self._replaced()
        if answer.status != 206:
            self._refuse(answer, f"the server answered {answer.status} {answer.reason}")
        match = _CONTENT_RANGE.fullmatch(answer.getheader("Content-Range", ""))
        if match is None:
            self._refuse_range(answer, "a range")
        return int(match[1]), int(match[2]), int(match[3])

    # --- errors ---------------------------------------------------------------------------------

    def _with_attempts(self, action: Callable[[], bool], position: Callable[[], int] | int) -> None:
        """Do something until it returns True; connections that are cut are tried again."""
        problem: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                self._waiting.wait(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            if self._pool.is_interrupted:
                raise LoadCancelledError(f"reading {self._name} was stopped")
            try:
                if action():
                    return
                problem = None
            except (OSError, _Retry) as error:
                problem = error
        if self._pool.is_interrupted:
            raise LoadCancelledError(f"reading {self._name} was stopped")
        where = position if isinstance(position, int) else position()
        raise StreamError(
            f"{self._name}: {ATTEMPTS} attempts failed, the last one at byte {where}: "
            f"{problem or 'the connection was cut'}",
            hint="Check the network and the server, then try again.",
        ) from problem

    def _refuse(self, answer: HttpAnswer, what: str) -> NoReturn:
        status = answer.status
        if status != 200:
            self._explain()
        if status == 404:
            raise NotFoundError(f"{self._name} does not exist", hint="Check the address.")
        if status == 200:
            raise StoreError(
                f"{self._name}: asked for a range, {what}",
                hint="The server or a proxy does not honour ranges; use one that does.",
            )
        raise StoreError(f"{self._name}: {what}", hint="Check the address and the permissions.")

    def _refuse_range(self, answer: HttpAnswer, wanted: str) -> NoReturn:
        found = answer.getheader("Content-Range", "")
        raise StoreError(
            f"{self._name}: asked for {wanted!r}, the server answered {answer.status} with "
            f"Content-Range {found!r}",
            hint="The server or a proxy does not honour ranges; use one that does.",
        )

    def _replaced(self) -> NoReturn:
        raise SourceChangedError(f"{self._name} was replaced while it was read")
