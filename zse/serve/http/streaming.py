"""Server-sent events, and the race every answer runs against the client and the shutdown.

Frames are bytes spliced around the text of a delta: nothing but the text is encoded per token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from zse.errors import ShuttingDownError, ZSEError
from zse.serve.http.dialects import dialect_of
from zse.serve.http.errors import ClientGoneError, error_frame, error_response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from starlette.types import Message, Receive, Scope, Send

    from zse.serve.http.shortcut import Shortcut

LOG = logging.getLogger("zse.serve")
Result = TypeVar("Result")

FRAMES = "zse.frames"
"""The extension of the ASGI scope that holds a ``FrameSink``, which spares a token eight calls."""
BURST_SECONDS = 0.001
"""Frames closer together are likely of the same step of the engine, and are sent together."""
KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_encode = msgspec.json.Encoder().encode


async def race(
    work: Coroutine[Any, Any, Result], receive: Receive, terminate: asyncio.Event
) -> Result:
    """Run ``work`` until it ends, the client leaves or the server must stop.

    The body of the request must have been read: what ``receive`` says next is the disconnect.

    Raises:
        ClientGoneError: The client left; the work was cancelled and has ended.
        ShuttingDownError: Draining ran out of time; likewise.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    stopper = asyncio.create_task(terminate.wait())
    try:
        await asyncio.wait({worker, watcher, stopper}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        if watcher.done():
            raise ClientGoneError
        raise ShuttingDownError("The server shut down before the answer was complete.")
    finally:
        for task in (worker, watcher, stopper):
            task.cancel()
        await asyncio.gather(worker, watcher, stopper, return_exceptions=True)


def _nothing() -> None:
    """Allow everything: the stand-in where no key is checked."""


async def nobody() -> Message:
    """Stand for a client where there is none: it never says anything."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class FrameSink(Protocol):
    """Writes frames past the ASGI wrappers, which have seen the head of the answer by then."""

    @property
    def written_at(self) -> float:
        """When a borrower last wrote a frame, on ``time.perf_counter``."""

    def take(self, frame: bytes, *, waits: bool) -> bool:
        """Write a frame at once, or with others of this turn of the loop where it ``waits``.

        Returns:
            False where it must be sent by the usual way.
        """

    def lend(self, borrower: Shortcut) -> int | None:
        """Let another thread write chunks until the next frame is taken or sent.

        Returns:
            The descriptor to write to; None where it cannot be lent now.
        """

    def take_back(self) -> None:
        """End a loan, and write what the borrower could not."""


class EventStream:
    """An ASGI response that sends frames as they come.

    The first frame is awaited before the headers are sent, so that a refusal by the engine still
    gets its own status; after ``keep_alive_seconds`` of silence the stream opens with a comment.
    A stream whose caller's key is removed meanwhile ends in an error at the next check.

    Args:
        frames: Whole events, each ending in a blank line; closed when the response ends.
        keep_alive_seconds: Longest silence before a comment, or the protocol's ping, is sent; also
            how often the caller's key is checked.
        failure: Makes the last event of a stream that failed; None leaves it to the route's
            protocol.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        terminate: asyncio.Event,
        headers: Mapping[str, str],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
        failure: Callable[[Exception], bytes] | None = None,
    ) -> None:
        self._frames = frames
        self._terminate = terminate
        self._headers = {**_HEADERS, **headers}
        self._keep_alive_seconds = keep_alive_seconds
        self._failure = failure
        self._alive = b""
        self._sink: FrameSink | None = None
        self._is_open = False
        self._last_sent = 0.0
        self._may_go_on: Callable[[], None] = _nothing
        self._refusal: ZSEError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._alive = dialect_of(scope["path"]).alive
        self._sink = scope.get("extensions", {}).get(FRAMES)
        self._may_go_on = scope.get("state", {}).get("may_go_on", _nothing)
        try:
            await race(self._produce_as_long_as_it_may(send), receive, self._terminate)
        except ClientGoneError:
            return
        except Exception as error:  # noqa: BLE001 - the last place where a stream can say so
            await self._fail(error, scope, receive, send)

    async def _produce_as_long_as_it_may(self, send: Send) -> None:
        """Produce until the caller's key is refused, which is raised then."""
        try:
            await self._produce(send)
        except asyncio.CancelledError:
            if self._refusal is None:
                raise
            raise self._refusal from None

    async def _produce(self, send: Send) -> None:
        ticker: asyncio.Task[None] | None = None
        async with aclosing(self._frames) as frames:
            first = asyncio.ensure_future(anext(frames, b""))
            try:
                await asyncio.wait({first}, timeout=self._keep_alive_seconds)
                if first.done():
                    first.result()  # raises here, while the status can still be chosen
                await self._open(send)
                ticker = asyncio.create_task(self._tick(send, asyncio.current_task()))
                await self._send(send, await first)
                sink = self._sink
                async for frame in frames:
                    now = time.perf_counter()
                    is_burst = now - self._last_sent < BURST_SECONDS
                    if sink is not None and sink.take(frame, waits=is_burst):
                        self._last_sent = now
                    else:
                        await self._send(send, frame)
            finally:
                first.cancel()
                pending = [first] if ticker is None else [first, ticker]
                if ticker is not None:
                    ticker.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _open(self, send: Send) -> None:
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in self._headers.items()]
        self._is_open = True
        self._last_sent = time.perf_counter()
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, frame: bytes) -> None:
        self._last_sent = time.perf_counter()
        await send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _tick(self, send: Send, producer: asyncio.Task[None] | None) -> None:
        """Send a comment whenever the stream has been silent for too long.

        The caller's key is checked as often; where it is refused, the producer is cancelled.
        """
        while True:
            try:
                self._may_go_on()
            except ZSEError as error:
                self._refusal = error
                if producer is not None:
                    producer.cancel()
                return
            last_sent = max(self._last_sent, self._sink.written_at if self._sink else 0.0)
            silent_seconds = time.perf_counter() - last_sent
            if silent_seconds >= self._keep_alive_seconds:
                await self._send(send, self._alive)
                silent_seconds = 0.0
            await asyncio.sleep(self._keep_alive_seconds - silent_seconds)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        log_failure(error)
        if not self._is_open:
            await error_response(error)(scope, receive, send)
            return
        frame = self._failure(error) if self._failure else error_frame(error, scope)
        await send({"type": "http.response.body", "body": frame, "more_body": False})


def log_failure(error: Exception) -> None:
    """Log what ended a stream where it is the server's fault."""
    if not isinstance(error, ZSEError) or error.http_status == 500:
        LOG.error("stream failed", exc_info=error)


_NO_USAGE = b'"usage":null}\n\n'


async def with_usage(
    frames: AsyncGenerator[bytes, None], usage: Callable[[], Mapping[str, Any]]
) -> AsyncGenerator[bytes, None]:
    """Yield chunks that say what has been used so far where they said nothing."""
    async with aclosing(frames):
        async for frame in frames:
            if frame.endswith(_NO_USAGE):
                frame = frame[: -len(_NO_USAGE)] + b'"usage":' + _encode(usage()) + b"}\n\n"
            yield frame


class ChunkWriter:
    """Makes the chunks of one stream around a prefix that never changes.

    Args:
        head: Fields of every chunk, in order: id, object, created, model, system_fingerprint.
        include_usage: Whether chunks carry ``usage`` (null until the last one).
    """

    def __init__(self, head: Mapping[str, Any], *, include_usage: bool) -> None:
        self._prefix = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._end = b"]," + _NO_USAGE if include_usage else b"]}\n\n"
        self._texts: dict[int, tuple[bytes, bytes]] = {}
        self.include_usage = include_usage

    def choice(self, choice: Mapping[str, Any]) -> bytes:
        return self._prefix + _encode(choice) + self._end

    def chat_text(self, index: int, text: str) -> bytes:
        """Return a chat chunk that adds text and nothing else."""
        before, behind = self.around_chat(index)
        return before + _encode(text) + behind

    def around_chat(self, index: int) -> tuple[bytes, bytes]:
        """Return what stands before and behind the JSON text in such a chunk."""
        around = self._texts.get(index)
        if around is None:
            before = b'%s{"index":%d,"delta":{"content":' % (self._prefix, index)
            behind = b'},"logprobs":null,"finish_reason":null}' + self._end
            around = self._texts[index] = before, behind
        return around

    def completion_text(self, index: int, text: str) -> bytes:
        """Return a text-completion chunk that adds text and nothing else."""
        before, behind = self.around_completion(index)
        return before + _encode(text) + behind

    def around_completion(self, index: int) -> tuple[bytes, bytes]:
        """Return what stands before and behind the JSON text in such a chunk."""
        around = self._texts.get(index)
        if around is None:
            behind = b',"index":%d,"logprobs":null,"finish_reason":null}%s' % (index, self._end)
            around = self._texts[index] = self._prefix + b'{"text":', behind
        return around

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        return self._prefix + b'],"usage":' + _encode(usage) + b"}\n\n"
