"""The HTTP server around the application: uvicorn, without its command line."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

MAX_HEADER_BYTES = 64 << 10
KEEP_ALIVE_SECONDS = 75
"""Longer than load balancers keep idle connections, or they would send into a closing one."""


def make_server(app: ASGIApp, *, end_seconds: float) -> uvicorn.Server:
    """Return a server of an application; it serves the sockets that it is given.

    In the end it waits ``end_seconds`` for connections to close.
    """
    _import_uvicorn()
    from uvicorn.config import Config
    from uvicorn.server import Server

    return Server(
        Config(
            app,
            http="h11",  # caps headers; the faster parser does not
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
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
