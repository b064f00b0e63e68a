"""The shell around every route: plain ASGI wrappers, one idea each, in the order of this file.

Wrappers read paths from the scope: ``request.url`` is built from the Host header, which the client
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.access.gate import Gate
from zse.serve.access.limited import Limited
from zse.serve.http.bodies import BoundedBody
from zse.serve.http.deadlines import Deadlines
from zse.serve.http.errors import error_response
from zse.serve.http.hosts import AllowedHosts
from zse.serve.http.reporting import Reporting
from zse.serve.http.websocket_guard import WebSocketGuard

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from zse.serve.state import AppState


def in_shell(
    app: ASGIApp, *, state: AppState, allowed_hosts: frozenset[str] | None = None
) -> ASGIApp:
    """Wrap an application; a request meets the last wrapper of this function first.

    Args:
        allowed_hosts: Host names that are answered; None answers all.
    """
    options = state.options.http
    app = WebSocketGuard(
        Deadlines(BoundedBody(app, max_bytes=options.max_body_bytes), state=state),
        origins=frozenset(options.cors_origins),
        max_open=options.max_websockets,
    )
    app = Limited(app, access=state.access, refuse=error_response)
    app = Gate(app, access=state.access, refuse=error_response)
    if allowed_hosts is not None:
        app = AllowedHosts(app, hosts=allowed_hosts)
    return Reporting(app, state=state)
