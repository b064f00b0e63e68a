"""The gate: says of every request who calls, and sends away who may not, before a route is chosen.

Denied is whatever is not allowed: paths are those that the router will read, not ``request.url``,
which is built from the Host header that the client writes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette._utils import get_route_path

from zse.serve.access.account import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zse.errors import ZSEError
    from zse.serve.access.policy import Access

    Refuse = Callable[[ZSEError, Mapping[str, str]], ASGIApp]

_CHALLENGE = {"www-authenticate": 'Bearer realm="zse"'}
_BEARER = b"bearer "
_PROTOCOL_PREFIXES = ("zse-api-key.", "openai-insecure-api-key.")
_ENCODED_PREFIX = "zse-api-key-base64url."
"""For keys with characters that the name of a protocol cannot have (RFC 6455, 4.1)."""
PROTOCOL = "zse"
"""What a WebSocket speaks; browsers want one answered where they offered any."""
_MAX_SHOWN = 4
"""More keys than any client shows at once: who tries some in one request is not listened to."""


class Gate:
    """Puts ``caller`` and ``account`` into the scope's state, or answers 401 or 403.

    ``may_go_on`` in that state raises once the caller's key lets in no longer; streams ask it.

    Args:
        access: Decides.
        refuse: Makes an error an answer.
        pages: Paths at which a browser that is refused is shown the login instead.
    """

    def __init__(
        self, app: ASGIApp, *, access: Access, refuse: Refuse, pages: frozenset[str] = frozenset()
    ) -> None:
        self.app = app
        self._pages = pages
        self._access = access
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown = _secrets_of(scope["headers"])
        if scope["type"] == "websocket":
            shown += _secrets_of_protocols(scope)
            send = _answering(scope, send)
        path, sessions = get_route_path(scope), self._access.sessions
        session = sessions.of(scope) if sessions is not None and not shown else None
        decision = self._access.decide(path, shown[:_MAX_SHOWN], session)
        caller, refusal = decision.caller, decision.refusal
        if session is not None and refusal is None and caller.key_id == session.key_id:
            refusal = session.forgery(scope)
        scope.setdefault("state", {}).update(
            caller=caller,
            account=Account(caller),
            session=session,
            may_go_on=partial(self._access.check_again, caller),
        )
        if refusal is None:
            await self.app(scope, receive, send)
        elif path in self._pages and _is_for_a_person(scope):
            await _show_login(path, send)
        elif scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
            headers = _CHALLENGE if refusal.http_status == 401 else {}
            await self._refuse(refusal, headers)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_for_a_person(scope: Scope) -> bool:
    """Whether a browser asks for a page to show it."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


async def _show_login(path: str, send: Send) -> None:
    """Send a browser to the login, and from there back; relative, for proxies in front."""
    location = b"login?next=" + path[1:].encode()
    headers = [(b"location", location), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _secrets_of(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    found = []
    for name, value in headers:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            found.append(value[len(_BEARER) :].strip())
        elif name == b"x-api-key":
            found.append(value.strip())
    return found


def _secrets_of_protocols(scope: Scope) -> list[bytes]:
    """Take the keys from the protocols that a WebSocket offers: browsers can send no header."""
    offered: list[str] = scope.get("subprotocols", [])
    shown = {name: _secret_in(name) for name in offered}
    scope["subprotocols"] = [name for name, secret in shown.items() if secret is None]
    return [secret for secret in shown.values() if secret is not None]


def _secret_in(protocol: str) -> bytes | None:
    """Return the key that a protocol's name is; None where it is none."""
    for prefix in _PROTOCOL_PREFIXES:
        if protocol.startswith(prefix):
            return protocol[len(prefix) :].encode()
    if not protocol.startswith(_ENCODED_PREFIX):
        return None
    from base64 import urlsafe_b64decode

    encoded = protocol[len(_ENCODED_PREFIX) :]
    try:
        return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return b""  # no key is empty


def _answering(scope: Scope, send: Send) -> Send:
    """Name the protocol where a handler names none, and the client offered ours."""
    if PROTOCOL not in scope["subprotocols"]:
        return send

    async def answering(message: Message) -> None:
        if message["type"] == "websocket.accept" and not message.get("subprotocol"):
            message = {**message, "subprotocol": PROTOCOL}
        await send(message)

    return answering
