"""The path that a proxy in front puts before ours: taken off, nothing behind knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def clean_root_path(given: str) -> str:
    """Return a root path as ``/a/b``; empty for none.

    Raises:
        UsageError: It is no path.
    """
    path = given.rstrip("/")
    if path and not path.startswith("/"):
        raise UsageError(f"root_path is {given!r}, expected a path such as /llm")
    return path


class RootPath:
    """Serves paths with and without the root path: some proxies take it off, others do not."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        self.app = app
        self._root = root_path
        self._raw_root = root_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == self._root or path.startswith(self._root + "/"):
            scope["path"] = path[len(self._root) :] or "/"
            scope["raw_path"] = scope["raw_path"].removeprefix(self._raw_root) or b"/"
        await self.app(scope, receive, send)
