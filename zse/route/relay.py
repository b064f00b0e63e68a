"""One request on its way to a replica, and the answer on its way back.

Asked again is only what cannot have begun: nobody took the connection, or the replica said that it
takes nothing (503), that its queue is full (429), or that it does not have what is asked for (404
of what one replica alone keeps). Where a replica is lost behind the request, its client is told and
may ask again; ``--repeat`` has the router do it, where nothing of the answer has been sent on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import OverloadedError
from zse.route.headers import answer_headers, request_head
from zse.route.upstream import LostError, NotReachedError, UpstreamError
from zse.serve.http.errors import (
    BodyTooLargeError,
    ClientGoneError,
    error_frame,
    error_response,
)
from zse.serve.http.streaming import FRAMES

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from zse.errors import ZSEError
    from zse.route.counts import Counts
    from zse.route.fleet import Fleet, Lot, Member
    from zse.route.prompt import Prompt
    from zse.route.upstream import Answer, Upstream
    from zse.serve.http.streaming import FrameSink

LOG = logging.getLogger("zse.route")
MAX_REFUSAL_BYTES = 256 << 10
"""Of an answer that is read whole before another replica is asked."""
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS"})
_KEPT_BY_ONE = ("/v1/responses/", "/v1/streams/")
"""What only the replica has that made it; another one says 404."""
_LIMITS = frozenset({"requests", "tokens"})
"""Types of errors of a key that has used what it may; another replica would give it more."""
_BROKEN = frozenset({500, 502, 504})


class _Error(msgspec.Struct):
    type: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None


class Refusal(Exception):  # noqa: N818 - it is an answer
    """A replica's whole answer, which says that another may be asked."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        super().__init__()
        self.answer = answer
        self.body = body


class Relay:
    """Takes one request to a replica and its answer back.

    Args:
        body: All of it: it may be sent more than once.
    """

    def __init__(
        self, fleet: Fleet, scope: Scope, send: Send, *, body: bytes, prompt: Prompt
    ) -> None:
        self._fleet = fleet
        self._counts: Counts = fleet.counts
        self._scope = scope
        self._send = send
        self._body = body
        self._prompt = prompt
        self._begun_at = time.monotonic()
        self._tried: set[str] = set()
        self._sink: FrameSink | None = scope.get("extensions", {}).get(FRAMES)
        self.has_begun = False
        """Whether the client has been sent anything."""
        self.status = 0
        self.replica = ""
        self.num_tries = 0

    async def run(self) -> None:
        """Have the request answered.

        Raises:
            ZSEError: Nobody answers it, and nothing was sent to the client.
        """
        options = self._fleet.options
        until = self._begun_at + options.route_wait
        failure: Refusal | UpstreamError | None = None
        num_left = len(self._fleet.members) if self._is_kept_by_one else options.max_retries
        while True:
            lot = await self._fleet.take(self._prompt, tried=self._tried, until=until)
            if lot is None:
                assert failure is not None  # it is what put the replica among those tried
                await self._end_with(failure)
                return
            if not self.num_tries:
                self._counts.waited.note(time.monotonic() - self._begun_at)
            self.num_tries += 1
            self.replica = lot.member.replica.name
            try:
                await self._try(lot, may_refuse=num_left > 0)
                return
            except Refusal as error:
                failure = error
                num_left -= self._after_refusal(lot.member, error)
            except UpstreamError as error:
                if not self._may_ask_again(error) or num_left <= 0:
                    raise
                failure = error
                num_left -= 1
                self._counts.retried("unreached" if _is_unreached(error) else "lost")
                if _is_unreached(error):
                    continue  # it is down now; where all are, the fleet says whether to wait
                self._tried.add(lot.member.replica.name)
                if not self._has_others():
                    raise
            finally:
                self._fleet.give_back(lot)

    def _has_others(self) -> bool:
        return any(name not in self._tried for name in self._fleet.members)

    def _after_refusal(self, member: Member, refusal: Refusal) -> int:
        """Note who refused; return whether that counts as a try."""
        status = refusal.answer.status
        self._counts.retried({503: "unready", 429: "full"}.get(status, "not_there"))
        if status == 503:
            # It is asked again when a look says that it is ready: until then the request waits.
            member.replica.saw_unready()
            return 0
        self._tried.add(member.replica.name)
        return 1

    def _may_ask_again(self, error: UpstreamError) -> bool:
        if self.has_begun:
            return False
        is_safe = self._scope["method"] in _IDEMPOTENT or self._fleet.options.repeat
        return _is_unreached(error) or (is_safe and isinstance(error, LostError))

    @property
    def _is_kept_by_one(self) -> bool:
        return self._prompt.goes_on or self._scope["path"].startswith(_KEPT_BY_ONE)

    # --- one replica ------------------------------------------------------------------------------

    async def _try(self, lot: Lot, *, may_refuse: bool) -> None:
        member, connection = lot.member, None
        try:
            connection = await member.pool.get()
            member.answering.add(connection)
            answer = await connection.ask(
                request_head(
                    self._scope,
                    member.address,
                    request_id=self._scope["state"]["request_id"],
                    num_bytes=len(self._body),
                ),
                self._body,
                is_head=self._scope["method"] == "HEAD",
            )
            if may_refuse and self._may_be_refusal(answer.status):
                await self._raise_refusal(connection, answer)
            self._note(lot, answer)
            await self._hand_on(connection, answer)
        except NotReachedError:
            member.replica.saw_refused(time.monotonic())
            self._fleet.note_failure(member)
            raise
        except UpstreamError:
            self._fleet.note_failure(member)
            raise
        finally:
            if connection is not None:
                member.answering.discard(connection)
                if connection.is_done and member.is_listed:
                    member.pool.give_back(connection)
                else:
                    connection.close()

    def _may_be_refusal(self, status: int) -> bool:
        return status in (429, 503) or (status == 404 and self._is_kept_by_one)

    async def _raise_refusal(self, connection: Upstream, answer: Answer) -> None:
        """Read a short answer whole; raise it where another replica may do better."""
        body = await _whole(connection)
        is_final = answer.status == 429 and _is_of_key(body)
        if is_final:
            connection.pieces.append(body)
            return
        raise Refusal(answer, body)

    def _note(self, lot: Lot, answer: Answer) -> None:
        if answer.status in _BROKEN:
            self._fleet.note_failure(lot.member)
        else:
            self._fleet.note_success(lot.member)
        if answer.status < 300:
            self._fleet.remember(lot, self._prompt)

    # --- the answer -------------------------------------------------------------------------------

    async def _begin(self, answer: Answer) -> None:
        request_id = self._scope["state"]["request_id"]
        headers = answer_headers(answer.headers, request_id=request_id)
        self.status = answer.status
        self._counts.first_byte.note(time.monotonic() - self._begun_at)
        self.has_begun = True
        await self._send(
            {"type": "http.response.start", "status": answer.status, "headers": headers}
        )

    async def _end_with(self, failure: Refusal | UpstreamError) -> None:
        """Hand on the last refusal, or raise the last loss: no other replica can be asked."""
        if isinstance(failure, UpstreamError):
            raise failure
        await self._begin(failure.answer)
        await self._send({"type": "http.response.body", "body": failure.body})

    async def _hand_on(self, connection: Upstream, answer: Answer) -> None:
        await self._begin(answer)
        news = asyncio.Event()
        connection.on_news = news.set
        sink = self._take if self._sink is not None else None
        while True:
            connection.sink = None  # what comes now stands behind what is being sent
            data = connection.take()
            if data:
                message = {"type": "http.response.body", "body": data, "more_body": True}
                await self._send(message)
                continue
            if connection.failure is not None:
                await self._break_off(connection.failure, answer)
                return
            if connection.is_done:
                await self._send({"type": "http.response.body", "body": b""})
                return
            news.clear()
            connection.sink = sink
            await news.wait()

    def _take(self, data: bytes) -> bool:
        assert self._sink is not None
        return self._sink.take(data, waits=False)

    async def _break_off(self, failure: UpstreamError, answer: Answer) -> None:
        """End an answer that the replica did not."""
        self._counts.broken += 1
        if not answer.field(b"content-type").startswith(b"text/event-stream"):
            raise failure  # the connection is cut: nobody takes a part for the whole
        frame = error_frame(failure, self._scope)
        await self._send({"type": "http.response.body", "body": frame})
        LOG.warning("a stream was broken off: %s", failure, extra={"replica": self.replica})


def _is_unreached(error: UpstreamError) -> bool:
    return isinstance(error, NotReachedError)


def _is_of_key(body: bytes) -> bool:
    """Whether a refusal says that a key has used what it may."""
    try:
        error = msgspec.json.decode(body, type=_ErrorBody).error
    except msgspec.DecodeError:
        return False
    return isinstance(error, _Error) and error.type in _LIMITS


async def _whole(connection: Upstream) -> bytes:
    """Read the rest of an answer.

    Raises:
        UpstreamError: It does not end as it should, or is long.
    """
    news = asyncio.Event()
    connection.on_news = news.set
    data = b""
    while True:
        data += connection.take()
        if connection.failure is not None:
            raise connection.failure
        if len(data) > MAX_REFUSAL_BYTES:
            raise LostError("A replica's refusal does not end.")
        if connection.is_done and not connection.pieces:
            return data
        news.clear()
        if not connection.is_done:
            await news.wait()


async def read_body(receive: Receive, fleet: Fleet, *, max_bytes: int) -> bytes:
    """Read a request's body; what is held of it is counted in ``held_bytes``.

    Raises:
        BodyTooLargeError: It is longer than the router reads.
        OverloadedError: All bodies together are.
        ClientGoneError: The client left.
    """
    counts, most = fleet.counts, fleet.options.max_held_mib << 20
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        while True:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            piece: bytes = message.get("body", b"")
            num_bytes += len(piece)
            counts.held_bytes += len(piece)
            pieces.append(piece)
            if num_bytes > max_bytes:
                raise BodyTooLargeError(f"The body is longer than {max_bytes >> 20} MiB.")
            if counts.held_bytes > most:
                raise OverloadedError("Requests that are in flight fill the router's memory.")
            if not message.get("more_body", False):
                return b"".join(pieces)
    except BaseException:
        counts.held_bytes -= num_bytes
        raise


async def refuse(error: ZSEError, scope: Scope, receive: Receive, send: Send) -> int:
    """Say why nobody answers; return the status."""
    response = error_response(error)
    response.headers["x-request-id"] = scope["state"]["request_id"]
    await response(scope, receive, send)
    return response.status_code
