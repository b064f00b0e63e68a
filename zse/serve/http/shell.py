"""The shell around every route: plain ASGI wrappers, one idea each, in the order of this file.

Wrappers read paths from the scope: ``request.url`` is built from the Host header, which the client
writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.access.gate import Gate
from zse.serve.access.limited import Limited
from zse.serve.access.rules import PAGES
from zse.serve.audit.auditing import Auditing
from zse.serve.http.bodies import BoundedBody
from zse.serve.http.deadlines import Deadlines
from zse.serve.http.errors import error_response
from zse.serve.http.hosts import AllowedHosts
from zse.serve.http.reporting import Reporting
from zse.serve.http.rules import HTTPRules
from zse.serve.http.websocket_guard import WebSocketGuard

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from zse.serve.state import AppState


def in_shell(app: ASGIApp, *, state: AppState, rules: HTTPRules | None = None) -> ASGIApp:
    """Wrap an application; a request meets the last wrapper of this function first.

    Args:
        rules: Whom it answers; everybody, when not given.
    """
    rules = rules or HTTPRules()
    options = state.options.http
    app = WebSocketGuard(
        Deadlines(BoundedBody(app, max_bytes=options.max_body_bytes), state=state),
        origins=rules.origins,
        max_open=options.max_websockets,
    )
    app = Limited(app, access=state.access, refuse=error_response)
    pages = PAGES if state.options.ui else frozenset[str]()
    app = Gate(app, access=state.access, refuse=error_response, pages=pages)
    if rules.origins:
        from zse.serve.http.cors import CrossOrigin

        app = CrossOrigin(app, origins=rules.origins)
    if rules.hosts is not None:
        app = AllowedHosts(app, hosts=rules.hosts)
    if state.options.audit.audit:
        app = Auditing(app, log=state.audit, with_content=state.options.audit.audit_content)
    app = Reporting(app, state=state)
    if rules.proxies:
        from zse.serve.http.proxies import TrustedProxies

        app = TrustedProxies(app, networks=rules.proxies)
    if rules.root_path:
        from zse.serve.http.root_path import RootPath

        app = RootPath(app, root_path=rules.root_path)
    return app
