"""Sessions of browsers: a cookie stands for the key that was shown once, at the login.

In memory, bounded, and no longer than half a day: a restart ends them. A cookie holds 256 random
bits, of which only the digest is kept. What a session asks to change carries a second secret in a
header, which no page of another origin knows; a WebSocket is only opened by a page of our own.

Imported by the first login.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.records import record
from zse.serve.access.keys import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

COOKIE = "zse-session"
CSRF_HEADER = "x-csrf-token"
SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 1024
MAX_SESSIONS_OF_KEY = 32
"""So that who logs in again and again ends sessions of its own key, and not everybody's."""
_RANDOM_BYTES = 32
_MAX_TOKEN = 64
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class ForgedRequestError(ZSEError):
    """A browser sends its session's cookie, and nothing says that a page of ours asked for it."""

    http_status = 403
    error_code = "csrf_token_missing"


@record
class Session:
    """One browser that is logged in."""

    key_id: str
    """Of the key that it showed."""
    csrf: str
    """What its pages send with every change."""
    ends_at: float
    """Unix seconds."""

    def forgery(self, scope: Scope) -> ForgedRequestError | None:
        """Return what is wrong with a request of this session; None where it is a page of ours."""
        headers = dict(scope["headers"])
        if scope["type"] == "websocket":
            host, origin = headers.get(b"host", b""), headers.get(b"origin", b"")
            if origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower()):
                return None
            return ForgedRequestError("A session's WebSocket is for pages of this server.")
        shown = headers.get(CSRF_HEADER.encode(), b"")
        if scope["method"] in _SAFE_METHODS or hmac.compare_digest(shown, self.csrf.encode()):
            return None
        return ForgedRequestError(f"A change by a session needs its token in '{CSRF_HEADER}'.")


class Sessions:
    """All sessions, by the digests of their cookies.

    Args:
        now: Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._open: OrderedDict[str, Session] = OrderedDict()

    def begin(self, key_id: str) -> tuple[str, Session]:
        """Begin a session for who showed a key; return what its cookie holds, and the session."""
        token = secrets.token_urlsafe(_RANDOM_BYTES)
        own = [digest for digest, session in self._open.items() if session.key_id == key_id]
        if len(own) >= MAX_SESSIONS_OF_KEY:
            del self._open[own[0]]
        while len(self._open) >= MAX_SESSIONS:
            self._open.popitem(last=False)
        session = Session(
            key_id=key_id,
            csrf=secrets.token_urlsafe(_RANDOM_BYTES),
            ends_at=self._now() + SESSION_SECONDS,
        )
        self._open[digest_of(token.encode())] = session
        return token, session

    def end(self, scope: Scope) -> None:
        """End the session of a request, if it has one."""
        self._open.pop(digest_of(_token_of(scope)), None)

    def of(self, scope: Scope) -> Session | None:
        """Return the session of a request; None where it has none, or one that is over."""
        token = _token_of(scope)
        digest = digest_of(token) if token else ""
        session = self._open.get(digest)
        if session is not None and session.ends_at <= self._now():
            del self._open[digest]
            return None
        return session


def _token_of(scope: Scope) -> bytes:
    """Return what the session's cookie holds; nothing where there is none or it is too long."""
    prefix = f"{COOKIE}=".encode()
    for name, value in scope["headers"]:
        if name != b"cookie":
            continue
        for part in value.split(b";"):
            if part.strip().startswith(prefix):
                token: bytes = part.strip()[len(prefix) :]
                return token if len(token) <= _MAX_TOKEN else b""
    return b""
