"""Who may administer: holders of an admin key, and no web page of another site.

Browsers let any page send a POST to any server, with no question asked where it has no body or
says it is a form. On loopback, where no key is asked for, such a page could unload the model.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from zse.errors import ZSEError
from zse.serve.access.caller import Scope, caller_of
from zse.serve.access.policy import ScopeError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME_SITE = frozenset({"same-origin", "none"})
"""What browsers say of a page of this server, and of an address that a person typed."""


class ForeignPageError(ZSEError):
    """A web page of another origin asks for a change."""

    http_status = 403
    error_code = "cross_origin_request"


class Guard:
    """A dependency of routes: lets only callers with a scope in.

    Args:
        scope: What a caller must be allowed to do.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __call__(self, connection: HTTPConnection) -> None:
        """Refuse who may not.

        Raises:
            ScopeError: The caller's key is for something else.
            ForeignPageError: A change is asked for by a page that this server did not send.
        """
        if not caller_of(connection.scope).may(self._scope):
            raise ScopeError(f"This route asks for a key with the scope '{self._scope}'.")
        if connection.scope.get("method", "GET") not in _SAFE_METHODS:
            refuse_foreign_page(connection)


def refuse_foreign_page(connection: HTTPConnection) -> None:
    """Refuse what a browser sends in the name of a page of another origin.

    Raises:
        ForeignPageError: It does.
    """
    headers = connection.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if site is not None:  # which a proxy that changes the host does not make wrong
        is_own = site in _SAME_SITE
    else:
        is_own = origin is None or urlsplit(origin).netloc == headers.get("host")
    if not is_own:
        raise ForeignPageError(f"A page of {str(origin)[:100]} may change nothing here.")
