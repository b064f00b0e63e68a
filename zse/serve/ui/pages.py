"""Rendering: templates of this package, escaped, under a policy that lets in only its own files."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import minijinja
from starlette.responses import Response

from zse import __version__
from zse.records import record
from zse.serve.access.caller import caller_of
from zse.serve.access.sessions import CSRF_HEADER, ForgedRequestError
from zse.serve.admin.guard import refuse_foreign_page
from zse.serve.http.requests import state_of
from zse.units import size_text

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.access.sessions import Session
    from zse.serve.state import AppState

FOLDER = Path(__file__).parent / "templates"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@record
class Link:
    """A page in the bar at the side."""

    path: str
    """Relative, so that it works behind a proxy that puts a path before ours."""
    title: str
    needs_admin: bool = True


LINKS = (
    Link(path="dashboard", title="Dashboard"),
    Link(path="chat", title="Playground", needs_admin=False),
    Link(path="documents", title="Documents", needs_admin=False),
    Link(path="models", title="Models"),
    Link(path="keys", title="API keys"),
    Link(path="requests", title="Requests"),
    Link(path="docs", title="Documentation", needs_admin=False),
)


class Pages:
    """Renders pages, and knows the token of those that nobody had to log in for."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self.guest_csrf = secrets.token_urlsafe(32)
        self._environment = minijinja.Environment(loader=_source_of, debug=False)
        self._environment.undefined_behavior = "strict"
        self._environment.add_filter("bytes", size_text)

    def render(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page, or a part of one, in which every value is text."""
        caller = caller_of(request.scope)
        session: Session | None = request.scope["state"].get("session")
        text = self._environment.render_template(
            name,
            version=__version__,
            links=[vars(link) for link in LINKS if caller.may("admin") or not link.needs_admin],
            csrf=csrf_of(request),
            caller_name=caller.name,
            is_admin=caller.may("admin"),
            is_logged_in=session is not None and session.key_id == caller.key_id,
            **values,
        )
        return Response(text, status, media_type="text/html", headers=HEADERS)


def render(request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page as ``Pages.render`` does."""
    return state_of(request).one_of(Pages).render(request, name, status=status, **values)


def csrf_of(request: Request) -> str:
    """Return what the pages of this caller send with every change."""
    session: Session | None = request.scope["state"].get("session")
    return session.csrf if session is not None else state_of(request).one_of(Pages).guest_csrf


def refuse_forged(request: Request) -> None:
    """Refuse a change that no page of ours asks for.

    Raises:
        ForeignPageError: A page of another origin does.
        ForgedRequestError: The token of our pages is missing.
    """
    refuse_foreign_page(request)
    shown = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(shown.encode(), csrf_of(request).encode()):
        raise ForgedRequestError(f"A page's changes need its token in '{CSRF_HEADER}'.")


def _source_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
