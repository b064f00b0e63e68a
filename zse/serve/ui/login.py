"""The login: an API key is shown once, and a cookie that no script can read stands for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from zse.serve.access.rules import PAGES
from zse.serve.access.sessions import COOKIE, SESSION_SECONDS, Sessions
from zse.serve.admin.guard import refuse_foreign_page
from zse.serve.http.requests import state_of
from zse.serve.ui.forms import read_form
from zse.serve.ui.pages import refuse_forged, render

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.access.policy import Access
    from zse.serve.access.sessions import Session

_HOME = "dashboard"
_HOME_OF_OTHERS = "chat"
"""Of keys that administer nothing."""


async def show_login(request: Request) -> Response:
    """Ask for a key; where there is none to be asked for, go on."""
    next_page = _page_named(request.query_params.get("next", ""))
    if not (state_of(request).access.asks_for_key or state_of(request).access.keyring.known):
        return to_page(next_page)
    return _show_form(request, next_page, key_name=_key_logged_in(request))


async def log_in(request: Request) -> Response:
    """Begin a session for a key that lets in.

    Raises:
        ForeignPageError: A page of another origin sends the form.
        BadRequestError: It is longer than any key.
    """
    refuse_foreign_page(request)
    form = await read_form(request)
    next_page = _page_named(form.get("next", ""))
    access = state_of(request).access
    key = access.keyring.find(form.get("key", "").encode())
    if key is None or key.state(time.time()) != "active":
        problem = "This key lets nobody in."
        return _show_form(request, next_page, problem, status=401)
    if key.scope == "metrics":
        problem = "This key is for metrics; pages ask for one of an admin or for inference."
        return _show_form(request, next_page, problem, status=403)
    answer = to_page(next_page if key.scope == "admin" else _HOME_OF_OTHERS)
    begin_session(request, answer, key.key_id)
    return answer


async def log_out(request: Request) -> Response:
    """End the session.

    Raises:
        ForgedRequestError: No page of ours asks for it.
    """
    refuse_forged(request)
    sessions_of(state_of(request).access).end(request.scope)
    answer = Response(status_code=204, headers={"hx-redirect": "login"})
    answer.delete_cookie(COOKIE, path=_cookie_path(request), httponly=True, samesite="strict")
    return answer


def begin_session(request: Request, answer: Response, key_id: str) -> Session:
    """Log a browser in with a key."""
    token, session = sessions_of(state_of(request).access).begin(key_id)
    answer.set_cookie(
        COOKIE,
        token,
        max_age=SESSION_SECONDS,
        path=_cookie_path(request),
        secure=request.scope.get("scheme") == "https",
        httponly=True,
        samesite="strict",
    )
    return session


def sessions_of(access: Access) -> Sessions:
    """Return the sessions of a server, which begin with its first login."""
    if access.sessions is None:
        access.sessions = Sessions()
    return access.sessions


def to_page(name: str) -> Response:
    """Send a browser to a page; relative, for proxies in front."""
    return Response(status_code=303, headers={"location": name, "cache-control": "no-store"})


def _show_form(
    request: Request, next_page: str, problem: str = "", *, key_name: str = "", status: int = 200
) -> Response:
    facts = {"next_page": next_page, "problem": problem, "key_name": key_name}
    return render(request, "login.html", status=status, **facts)


def _key_logged_in(request: Request) -> str:
    """Return the name of the key that a browser is logged in with; empty where it is with none.

    It was sent here from a page that this key does not open.
    """
    session: Session | None = request.scope["state"].get("session")
    known = state_of(request).access.keyring.known
    return next((key.name for key in known if session and key.key_id == session.key_id), "")


def _cookie_path(request: Request) -> str:
    return state_of(request).options.http.root_path.rstrip("/") or "/"


def _page_named(name: str) -> str:
    """Return a page of ours: an address from outside is never gone to."""
    return name if f"/{name}" in PAGES else _HOME
