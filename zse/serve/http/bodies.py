"""How much of a body is read: so many bytes, and so many values in them, counted as they come.

What a body costs is not its bytes alone. Thirty megabytes of ``[],[],[]`` are a gigabyte of lists
and seconds in which nobody else is answered. Brackets, colons and commas are counted before
anything is decoded, also those inside texts: more of them are more tokens than any model reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import OverloadedError
from zse.serve.http.errors import BadRequestError, BodyTooLargeError, error_response
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.serve.state import AppState

MAX_BODY_BYTES = 32 << 20
MAX_CONTAINERS = 50_000
"""Objects and lists in a body."""
MAX_KEYS = 60_000
"""Named values in objects, which cost most: each makes a text and finds its place."""
MAX_VALUES = 300_000
MAX_ESCAPES = 2_000_000
"""Characters of texts that are not written as themselves."""
MAX_HELD_BYTES = 256 << 20
"""Of all the bodies that are being read or decoded."""
FREE_BYTES = 64 << 10
"""Of each body that count for nothing: short requests are read whatever the long ones do."""


class BoundedBody:
    """Refuses bodies that are too long or hold too much, as soon as that is known."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            refusal = _too_large(self._max_bytes)
            await error_response(refusal, {"connection": "close"})(scope, receive, send)
            return
        is_text = not headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        await self.app(scope, _Counted(receive, self._max_bytes, is_text=is_text), send)


class _Counted:
    """Receives a body while it stays within its limits."""

    def __init__(self, receive: Receive, max_bytes: int, *, is_text: bool) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._content = JSONContent() if is_text else None

    async def __call__(self) -> Message:
        message = await self._receive()
        if piece := message.get("body", b""):
            self._num_bytes += len(piece)
            if self._num_bytes > self._max_bytes:
                raise _too_large(self._max_bytes)
            if self._content is not None:
                self._content.add(piece)
        return message


class JSONContent:
    """What a text that is to be decoded holds, counted before anything is made of it."""

    def __init__(self) -> None:
        self._num_containers = 0
        self._num_keys = 0
        self._num_values = 0
        self._num_escapes = 0

    def add(self, piece: bytes) -> None:
        """Count more of the text.

        Raises:
            BadRequestError: It holds more than is decoded.
        """
        self._num_containers += piece.count(b"[") + piece.count(b"{")
        self._num_keys += piece.count(b":")
        self._num_values += piece.count(b",")
        self._num_escapes += piece.count(b"\\")
        for found, most, what in (
            (self._num_containers, MAX_CONTAINERS, "objects and lists"),
            (self._num_keys, MAX_KEYS, "named values"),
            (self._num_values, MAX_VALUES, "values"),
            (self._num_escapes, MAX_ESCAPES, "escaped characters"),
        ):
            if found > most:
                raise BadRequestError(f"The body has more than {most:,} {what}.")


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {max_bytes >> 20} MiB.")


class BodyRoom:
    """Room for the bodies that a server is reading or decoding, all together."""

    def __init__(self, state: AppState, max_bytes: int = MAX_HELD_BYTES) -> None:  # noqa: ARG002
        self._max_bytes = max_bytes
        self._shares = Shares()

    def hold(self, tenant: str = "") -> HeldBody:
        """Return what counts one body of a caller; use it in a ``with``."""
        return HeldBody(self, tenant)

    def take(self, num_bytes: int, tenant: str = "") -> None:
        """Take room, or give it back.

        Raises:
            OverloadedError: There is not so much, or not for this caller.
        """
        shares, most = self._shares, self._max_bytes
        if num_bytes > 0 and (
            shares.total + num_bytes > most or not shares.has_share(tenant, num_bytes, most=most)
        ):
            raise OverloadedError("Other long requests are being read; try again in a moment.")
        shares.take(tenant, num_bytes)


class HeldBody:
    """The room that one body takes."""

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._num_read = 0
        self._num_taken = 0

    def add(self, num_bytes: int) -> None:
        """Count more of the body.

        Raises:
            OverloadedError: All bodies together are too long.
        """
        self._num_read += num_bytes
        more = max(0, self._num_read - FREE_BYTES) - self._num_taken
        self._room.take(more, self._tenant)
        self._num_taken += more

    def __enter__(self) -> HeldBody:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.take(-self._num_taken, self._tenant)
