"""The HTTP server around the application: uvicorn without its command line, behind our door.

uvicorn accepts connections and waits for them in the end; what a connection may do is said here.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zse.options import HTTPOptions

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from zse.serve.http.tls import Certificates

LOOK_SECONDS = 10
"""How often certificates are looked at."""


def make_server(
    app: ASGIApp,
    *,
    end_seconds: float,
    options: HTTPOptions | None = None,
    certificates: Certificates | None = None,
) -> uvicorn.Server:
    """Return a server of an application; it serves the sockets that it is given.

    In the end it waits ``end_seconds`` for connections to close. With certificates it speaks HTTPS.
    """
    _import_uvicorn()
    from uvicorn.config import Config

    from zse.serve.http.connection import Connection
    from zse.serve.http.door import Door
    from zse.serve.http.quiet_server import QuietServer

    door = Door(options or HTTPOptions())

    def connect(_loop: object = None, **shared: Any) -> Connection:  # as uvicorn calls it
        return Connection(door, **shared)

    config = Config(
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
    config.load()
    if certificates is not None:
        config.ssl = certificates.context
        config.callback_notify = partial(asyncio.to_thread, certificates.refresh)
        config.timeout_notify = LOOK_SECONDS
    return QuietServer(config)


def warm() -> None:
    """Import what the first WebSocket needs, and spare the collector what will stay for ever.

    A collection that walks over all that was imported takes longer than a token.
    """
    import zse.serve.http.websocket  # noqa: F401 - it is there when it is asked for

    gc.freeze()


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
