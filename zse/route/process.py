"""The router as a process: it listens, looks at its replicas, and leaves as a server does.

SIGTERM turns readiness off, answers for ``--leave-seconds`` and waits ``--drain-seconds`` for what
is in flight; a second signal ends that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from typing import TYPE_CHECKING

from zse.route.addresses import read_address, sources_of
from zse.route.app import RouteApp
from zse.route.counts import Counts
from zse.route.fleet import Fleet
from zse.route.looks import Looks
from zse.serve.http.hosts import AllowedHosts
from zse.serve.http.proxies import TrustedProxies
from zse.serve.http.rules import rules_of
from zse.serve.http.server import HTTPServer
from zse.serve.shutdown import END_SECONDS
from zse.serve.sockets import bind_socket, url_of
from zse.serve.telemetry.logs import configure_logging
from zse.unread_variables import refuse_lost_guards, warn_of_unread

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp

    from zse.route.addresses import Address
    from zse.serve.http.rules import HTTPRules
    from zse.settings import Settings

LOG = logging.getLogger("zse.route")
_LOOK_SECONDS = 0.02


def run_router(settings: Settings) -> int:
    """Route until a signal; return the exit code.

    Raises:
        UsageError: No replicas are named, the address cannot be bound, or a variable that was to
            guard the router has a name that nothing reads.
    """
    refuse_lost_guards()
    options = settings.serve
    sources = sources_of(settings.route)
    if settings.route.wake_url:
        scheme, _, rest = settings.route.wake_url.partition("://")
        read_address(f"{scheme}://{rest.partition('/')[0]}")
    rules = rules_of(options.http, bound=options.host)
    with bind_socket(options.host, options.port) as listener:
        configure_logging(options.log_level, options.log_format)
        port = listener.getsockname()[1]
        url = url_of(options.host, port, is_secure=bool(options.http.ssl_certfile))
        LOG.info("listening", extra={"host": options.host, "port": port, "url": url})
        warn_of_unread(LOG)
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_Process(settings, rules, url).run(listener, sources))
    return 0


class _Process:
    """From the first look to the last answer."""

    def __init__(self, settings: Settings, rules: HTTPRules, url: str) -> None:
        self._settings = settings
        self._url = url
        self._rules = rules
        self._leave = asyncio.Event()
        self._terminate = asyncio.Event()

    async def run(
        self, listener: socket.socket, sources: list[Callable[[], Iterable[Address]]]
    ) -> None:
        http = self._settings.serve.http
        fleet = Fleet(self._settings.route, Counts(), clock=time.monotonic)
        app = RouteApp(fleet, terminate=self._terminate, max_body_bytes=http.max_body_bytes)
        server = HTTPServer(
            _in_rules(app, self._rules),
            end_seconds=END_SECONDS,
            options=http,
            certificates=self._rules.certificates,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        looks = Looks(fleet, sources)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await looks.start()
            LOG.info("ready", extra={"url": self._url, "replicas": len(fleet.members)})
            await self._leave.wait()
            app.is_leaving = True
            await self._drain(fleet)
        finally:
            server.should_exit = True
            await serving
            await looks.stop()
            fleet.close()

    def _on_signal(self) -> None:
        if self._leave.is_set():
            self._terminate.set()
        self._leave.set()

    async def _drain(self, fleet: Fleet) -> None:
        """Answer for a while, then wait for what is in flight, then end it."""
        options = self._settings.serve
        LOG.info("leaving", extra={"in_flight": fleet.counts.in_flight})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.leave_seconds):
                await self._terminate.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(options.drain_seconds):
                while fleet.counts.in_flight and not self._terminate.is_set():
                    await asyncio.sleep(_LOOK_SECONDS)
        self._terminate.set()


def _in_rules(app: ASGIApp, rules: HTTPRules) -> ASGIApp:
    if rules.hosts is not None:
        app = AllowedHosts(app, hosts=rules.hosts)
    if rules.proxies:
        app = TrustedProxies(app, networks=rules.proxies)
    return app
