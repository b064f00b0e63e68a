"""``zse route``: one address in front of many servers."""

from __future__ import annotations

from typing import Any

from zse.cli.app import App
from zse.cli.table_flags import with_flags_of
from zse.option import options_of, with_flags
from zse.route_options import RouteOptions
from zse.server_options import HTTPOptions
from zse.settings import Settings, load_settings

_OF_SERVERS = (
    *("host", "port", "leave_seconds", "drain_seconds", "log_level", "log_format"),
    *(
        key
        for key in options_of(HTTPOptions)
        if key not in ("cors_origin", "root_path", "max_websockets")
    ),
)
_FLAGS = [*(key for key, row in options_of(RouteOptions).items() if row.by_hand), *_OF_SERVERS]

app = App()


@app.command("route")
@with_flags_of(_FLAGS, Settings)
def command(*, given: dict[str, Any]) -> int:
    """Send each request to the server (replica) that can answer it soonest.

    That is one that has the beginning of the prompt in its cache, or one that has little to do.
    API keys are passed on: the replicas check them. Replicas should be zse servers of one
    version with the same models; other servers of the OpenAI API work, too. Nothing is stored
    on disk.
    """
    from zse.route.process import run_router

    return run_router(with_flags(load_settings(), given))
