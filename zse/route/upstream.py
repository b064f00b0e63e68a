"""Connections to replicas: HTTP/1.1 as we write it, and read by the letter.

A piece of an answer is handed on inside the loop's own call, so that a token wakes no task. Who
does not take it lets it wait here, up to a bound at which the replica is read no more.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.serve.http.errors import GatewayError
from zse.serve.http.framing import ChunkFraming, LengthFraming
from zse.serve.http.head import END, MAX_HEAD_BYTES, MalformedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.route.addresses import Address
    from zse.serve.http.framing import Framing

HIGH_WATER_BYTES = 64 << 10
"""Of an answer that its client has not taken; the replica is read no more then."""
MAX_IDLE = 32
"""Connections to one replica that wait for the next request."""
IDLE_SECONDS = 4.0
"""After which a connection is not used again: shorter than servers keep theirs, so that none is
closed under a request that is on its way."""
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\x20-\x7e\x80-\xff]*)?")
_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_BAD = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_MAX_LENGTH_DIGITS = 15
_MAX_INTERIM = 8


class UpstreamError(GatewayError):
    """A replica did not answer as it should."""

    error_code = "replica_failed"


class NotReachedError(UpstreamError):
    """No connection came about: nothing has begun there."""


class LostError(UpstreamError):
    """The connection ended before the answer did."""


class BadAnswerError(UpstreamError):
    """What came is no answer of HTTP/1.1, or one that might be read in two ways."""


@record
class Answer:
    """The head of an answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    length: int | None
    """Of the body in bytes; None where it is told by chunks, or by the connection's end."""

    def field(self, name: bytes) -> bytes:
        """Return the last header of a name, or nothing."""
        return dict(self.headers).get(name, b"")


class Upstream(asyncio.Protocol):
    """One connection: a request, its answer, and perhaps the next request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._buffer = bytearray()
        self._num_searched = 0
        self._answer: asyncio.Future[Answer] | None = None
        self._framing: Framing | None = None
        self._is_framed = False
        """Whether the head of the answer is there, and says where the body ends."""
        self._keeps_alive = False
        self._is_head_request = False
        self._num_interim = 0
        self._is_paused = False
        self._unblocked: asyncio.Future[None] | None = None
        self.sink: Callable[[bytes], bool] | None = None
        """Takes pieces of the body at once, where it can; else they wait in ``pieces``."""
        self.on_news: Callable[[], None] | None = None
        """Called when there is something in ``pieces``, or the answer ended."""
        self.pieces: deque[bytes] = deque()
        self._num_held = 0
        self.is_done = False
        """Whether the answer is there to its end."""
        self.failure: UpstreamError | None = None
        self.is_closed = False
        self.has_answered = False
        """Whether any byte of this answer has come."""
        self.heard_at = 0.0
        """When something came of it last, or it began, on the loop's clock."""
        self.idle_since = 0.0

    # --- called by the loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_closed = True
        self.resume_writing()
        if self._is_framed and self._framing is None and not self.is_done:
            self._end()
        elif not self.is_done:
            self._fail(LostError("The connection to the replica ended before its answer did."))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._unblocked = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._unblocked is not None and not self._unblocked.done():
            self._unblocked.set_result(None)
        self._unblocked = None

    def data_received(self, data: bytes) -> None:
        if self.is_done or self.failure is not None:
            self.close()  # nobody asked for it
            return
        self.has_answered = True
        self.heard_at = self._loop.time()
        try:
            self._read(data)
        except MalformedRequestError:
            self._fail(BadAnswerError("A replica's answer has a body that is not well formed."))
        except BadAnswerError as error:
            self._fail(error)

    # --- a request ------------------------------------------------------------------------------

    async def ask(self, head: bytes, body: bytes, *, is_head: bool = False) -> Answer:
        """Send a request and return the head of its answer.

        Raises:
            LostError: The connection ended first.
            BadAnswerError: What came is none.
        """
        self._begin(is_head=is_head)
        self.heard_at = self._loop.time()
        assert self._answer is not None
        self._transport.write(head + body if len(body) < HIGH_WATER_BYTES else head)
        if len(body) >= HIGH_WATER_BYTES:
            await self._send(body)
        return await self._answer

    async def _send(self, body: bytes) -> None:
        view = memoryview(body)
        for start in range(0, len(body), HIGH_WATER_BYTES):
            if self.failure is not None or self.has_answered:
                return  # a refusal comes before the end of what it refuses
            self._transport.write(view[start : start + HIGH_WATER_BYTES])
            if self._unblocked is not None:
                await self._unblocked

    def _begin(self, *, is_head: bool) -> None:
        self._answer = self._loop.create_future()
        self._framing, self._is_framed = None, False
        self._is_head_request = is_head
        self._num_searched = self._num_interim = self._num_held = 0
        self.is_done = self.has_answered = False
        self.failure = None
        self.pieces.clear()
        if self.is_closed or self._transport.is_closing():
            self._fail(LostError("The connection to the replica was closed."))

    def take(self) -> bytes:
        """Return what waits of the body, and have more come."""
        data = b"".join(self.pieces)
        self.pieces.clear()
        self._num_held = 0
        if self._is_paused and not self.is_closed:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    @property
    def can_be_used_again(self) -> bool:
        """Whether the next request may go over it."""
        is_whole = self.is_done and self.failure is None and not self._buffer
        return is_whole and self._keeps_alive and not self._transport.is_closing()

    def give_up(self) -> None:
        """End an answer that does not come on."""
        self._fail(LostError("The replica does not answer any more."))

    def close(self) -> None:
        """Cut the connection: the replica ends what it does for it."""
        self.is_closed = True
        self.sink = self.on_news = None
        if self._transport is not None:
            self._transport.abort()

    # --- reading --------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        self._buffer += data
        while not self._is_framed:
            if not self._read_head():
                return
        framing = self._framing
        if framing is None:
            piece = bytes(self._buffer)
            self._buffer.clear()
        else:
            piece = framing.take(self._buffer)
        if piece:
            self._give(piece)
        if framing is not None and framing.is_done and not self.is_done:
            self._end()

    def _read_head(self) -> bool:
        """Read one head; return whether there was a whole one."""
        end = self._buffer.find(END, max(0, self._num_searched - len(END)))
        if end < 0 or end > MAX_HEAD_BYTES:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadAnswerError("A replica's answer has a head that is too large.")
            self._num_searched = len(self._buffer)
            return False
        answer, version = read_answer_head(bytes(self._buffer[:end]))
        del self._buffer[: end + len(END)]
        self._num_searched = 0
        if answer.status < 200:  # and the answer itself follows
            self._num_interim += 1
            if self._num_interim > _MAX_INTERIM or answer.status == 101:
                raise BadAnswerError("A replica answers with what nobody asked for.")
            return True
        self._is_framed = True
        self._frame(answer, version)
        assert self._answer is not None
        if not self._answer.done():
            self._answer.set_result(answer)
        return True

    def _frame(self, answer: Answer, version: bytes) -> None:
        closes = b"close" in answer.field(b"connection").lower()
        self._keeps_alive = version == b"1" and not closes
        if self._is_head_request or answer.status in (204, 304):
            self._framing = LengthFraming(0)
        elif answer.field(b"transfer-encoding"):
            self._framing = ChunkFraming()
        elif answer.length is not None:
            self._framing = LengthFraming(answer.length)
        else:
            self._keeps_alive = False  # the connection's end is the body's

    def _give(self, piece: bytes) -> None:
        if self.sink is not None and not self.pieces and self.sink(piece):
            return
        self.pieces.append(piece)
        self._num_held += len(piece)
        if self._num_held > HIGH_WATER_BYTES and not self._is_paused and not self.is_closed:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def _end(self) -> None:
        self.is_done = True
        self._tell()

    def _fail(self, failure: UpstreamError) -> None:
        if self.failure is not None or self.is_done:
            return
        self.failure = failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
            self._answer.exception()  # whoever asked may have left
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()
        self._tell()

    def _tell(self) -> None:
        if self.on_news is not None:
            self.on_news()


def read_answer_head(data: bytes) -> tuple[Answer, bytes]:
    """Return the head of an answer, and the minor version.

    Raises:
        BadAnswerError: It is none, or can be read in two ways.
    """
    first, *lines = data.split(b"\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise BadAnswerError("A replica's answer does not begin as HTTP/1.1 does.")
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None or _BAD.search(value):
            raise BadAnswerError("A replica's answer has a header that is none.")
        headers.append((name.lower(), value.strip(b" \t")))
    version, status = found.groups()
    return Answer(status=int(status), headers=headers, length=_length_of(headers)), version


def _length_of(headers: list[tuple[bytes, bytes]]) -> int | None:
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    lengths = {value for name, value in headers if name == b"content-length"}
    if codings:
        if codings != [b"chunked"] or lengths:
            raise BadAnswerError("A replica's answer says twice, or unclearly, where it ends.")
        return None
    if not lengths:
        return None
    (length, *others) = lengths
    if others or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise BadAnswerError("A replica's answer has a Content-Length that is no number.")
    return int(length)


class Pool:
    """Connections to one replica."""

    def __init__(self, address: Address, *, connect_seconds: float) -> None:
        self.address = address
        self._connect_seconds = connect_seconds
        self._idle: deque[Upstream] = deque()
        self._context = ssl.create_default_context() if address.scheme == "https" else None

    async def get(self) -> Upstream:
        """Return a connection that nobody uses.

        Raises:
            NotReachedError: There is none in time.
        """
        now = asyncio.get_running_loop().time()
        while self._idle:
            found = self._idle.pop()
            if found.can_be_used_again and now - found.idle_since < IDLE_SECONDS:
                return found
            found.close()
        return await self._connect()

    async def _connect(self) -> Upstream:
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {"ssl": self._context} if self._context is not None else {}
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, found = await loop.create_connection(
                    Upstream, self.address.host, self.address.port, **secured
                )
        except TimeoutError:
            raise NotReachedError("A replica did not accept a connection in time.") from None
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error.strerror or "unknown"
            raise NotReachedError(f"A replica cannot be reached: {reason}.") from None
        return found

    def give_back(self, connection: Upstream) -> None:
        """Keep a connection for the next request, or close it."""
        connection.sink = connection.on_news = None
        connection.idle_since = asyncio.get_running_loop().time()
        if connection.can_be_used_again and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
