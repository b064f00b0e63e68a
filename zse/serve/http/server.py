"""The HTTP server around the application: uvicorn without its command line, behind our door.

uvicorn accepts connections and waits for them in the end; what a connection may do is said here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zse.options import HTTPOptions

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


def make_server(
    app: ASGIApp, *, end_seconds: float, options: HTTPOptions | None = None
) -> uvicorn.Server:
    """Return a server of an application; it serves the sockets that it is given.

    In the end it waits ``end_seconds`` for connections to close.
    """
    _import_uvicorn()
    from uvicorn.config import Config
    from uvicorn.server import Server

    from zse.serve.http.connection import Connection
    from zse.serve.http.door import Door

    door = Door(options or HTTPOptions())

    def connect(_loop: object = None, **shared: Any) -> Connection:  # as uvicorn calls it
        return Connection(door, **shared)

    return Server(
        Config(
            app,
            http=connect,  # type: ignore[arg-type]
            ws="none",  # the connection knows how
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(end_seconds),
        )
    )


def _import_uvicorn() -> None:
    """Import the package without its command line.

    It imports that first, and with that more than the server itself needs. An
    empty module stands in for it meanwhile.
    """
    name, unneeded = "uvicorn.main", ("Server", "main", "run")
    if "uvicorn" not in sys.modules:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(unneeded))
        try:
            import uvicorn
        finally:
            del sys.modules[name]
        for attribute in unneeded:
            delattr(uvicorn, attribute)
