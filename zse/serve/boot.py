"""Boot: answer at once, load beside it, drain at the end.

bind, model on its way (before this module) -> engine imported in a thread, web stack beside it,
first answers (503) -> model ready -> ... -> SIGTERM: readiness flips, work in flight ends ->
exit code 0

A load that fails or an engine that crashes ends the process with the exit code of its error, after
what was asked has been answered with an error: the platform starts another.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from zse.device.early import early
from zse.errors import LoadCancelledError, ZSEError
from zse.serve import garbage_collection
from zse.serve.access.opening import open_access
from zse.serve.audit.log import AuditLog
from zse.serve.audit.opening import files_for_server
from zse.serve.background import crashed, warm
from zse.serve.http.rules import rules_of
from zse.serve.shutdown import END_SECONDS, Departure, end_now, has_stragglers
from zse.serve.sockets import is_loopback, url_of
from zse.serve.state import AppState
from zse.serve.telemetry.logs import configure_logging
from zse.unread_variables import warn_of_unread

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from zse.serve.handover import Predecessor
    from zse.serve.http.rules import HTTPRules
    from zse.serve.http.server import HTTPServer
    from zse.serve.ledger import Ledger
    from zse.serve.sharing import Sharing
    from zse.serve.state import LoadedModel
    from zse.serve.telemetry.tracing import Tracing
    from zse.server_options import ServeOptions, TelemetryOptions
    from zse.settings import Settings

LOG = logging.getLogger("zse.serve")

LOOK_SECONDS = 0.01
_FIRST_ANSWER_SECONDS = 0.05
"""That a request which waited for the model takes: what is not for it begins behind that."""


def serve(
    listener: socket.socket,
    settings: Settings,
    load: Callable[[AppState], LoadedModel],
    ledger: Ledger,
    predecessor: Predecessor | None = None,
) -> int:
    """Serve on a listening socket until a signal; return the exit code. A thread calls ``load``.

    Where a predecessor still serves it, it is relieved when the model is ready.
    """
    options = settings.serve
    handler = configure_logging(options.log_level, options.log_format)
    port = listener.getsockname()[1]
    place = {"host": options.host, "port": port, "url": _url(options, port)}
    LOG.info("listening", extra={**place, "model": options.model.partition("?")[0]})
    warn_of_unread(LOG)
    try:
        opened = open_access(settings, is_local=is_loopback(options.host))
        audit = AuditLog(files_for_server(settings))
        rules = rules_of(options.http, bound=options.host)
        if options.places:
            from zse.serve.admin.places import Places

            Places(options.model, options.places)  # a wrong one is an error now, not at a request
        if options.peering.share_weights:
            from zse.stream.peers.proof import read_secret

            read_secret(options.peering.secret, options.peering.secret_file)
        if options.server_tools.mcp:
            from zse.serve.mcp.servers import check_servers

            check_servers(options.server_tools.mcp)
        tracing = _open_tracing(options.telemetry)
    except ZSEError as error:
        return _refuse(error, settings)
    if opened.notice:
        # It holds a key, so it must not be in the log, which is kept and sent on.
        print(opened.notice, file=sys.stderr, flush=True)  # noqa: T201
    state = AppState(
        ledger=ledger, options=options, access=opened.access, audit=audit, settings=settings
    )
    state.tracing = tracing
    if options.fleet.is_wanted:
        from zse.serve.fleet.fleet import Fleet

        state.fleet = Fleet(state)
    if (follow := getattr(handler, "follow", None)) is not None:  # a terminal
        follow(state)
    process = ServerProcess(state, settings, url=place["url"], predecessor=predecessor)
    process.start_loading(load)
    with ledger.phase("web"):  # beside the loader, whose file reads leave the interpreter free
        server = _make_server(state, rules)
    exit_code = process.run(server, listener)
    if has_stragglers():
        end_now(exit_code)
    return exit_code


def _url(options: ServeOptions, port: int) -> str:
    return url_of(options.host, port, is_secure=bool(options.http.ssl_certfile))


def _refuse(error: ZSEError, settings: Settings) -> int:
    from zse.serve.failures import report_failure

    exit_code = report_failure("the server could not be started", error, settings)
    if has_stragglers():
        end_now(exit_code)
    return exit_code


def _open_tracing(options: TelemetryOptions) -> Tracing | None:
    if not options.otlp_endpoint:
        return None
    from zse.serve.telemetry.tracing import Tracing

    return Tracing(options.otlp_endpoint, options.trace_ratio)


def _make_server(state: AppState, rules: HTTPRules) -> HTTPServer:
    from zse.serve.app import create_app
    from zse.serve.http.server import HTTPServer

    return HTTPServer(
        create_app(state, rules=rules),
        end_seconds=END_SECONDS,
        options=state.options.http,
        certificates=rules.certificates,
    )


class ServerProcess:
    """The process from its first answer to its exit code."""

    def __init__(
        self,
        state: AppState,
        settings: Settings,
        *,
        url: str,
        predecessor: Predecessor | None = None,
    ) -> None:
        self._url = url
        self._predecessor = predecessor
        self._server: HTTPServer | None = None
        self._state = state
        self._settings = settings
        self._exit_code = 0
        self._is_answering = threading.Event()
        self._drainer: asyncio.Task[None] | None = None
        self._sharing: Sharing | None = None

    def start_loading(self, load: Callable[[AppState], LoadedModel]) -> None:
        """Load the model in a thread that ends with the process."""
        threading.Thread(target=self._load, args=(load,), name="zse-boot", daemon=True).start()

    def run(self, server: HTTPServer, listener: socket.socket) -> int:
        """Answer until a signal or a failed load; return the exit code."""
        self._server = server
        if self._exit_code == 0:  # else the load failed before there was a server to stop
            asyncio.run(self._serve(server, listener))
        if self._sharing is not None:
            self._sharing.close()
        for entry in self._state.models:
            self._close(entry.model)
        self._state.audit.close()
        if self._state.tracing is not None:
            self._state.tracing.close()
        LOG.info("stopped", extra={"exit_code": self._exit_code})
        return self._exit_code

    def _load(self, load: Callable[[AppState], LoadedModel]) -> None:
        state = self._state
        try:
            model = load(state)
        except BaseException as error:  # noqa: BLE001 - any failure to load ends the process
            self._give_up(error)
            return
        self._is_answering.wait()  # a small model is there before the web stack
        try:
            self._take_requests(model)
        except LoadCancelledError:  # the server leaves while weights are on their way
            return
        except BaseException as error:  # noqa: BLE001 - as above
            self._give_up(error)
            return
        state.phase = "ready"
        facts = {"model": model.name, "url": self._url, "max_context": model.max_context}
        facts["has_pages"] = state.options.ui
        chats = model.template is not None
        ledger = state.ledger.to_json()
        asks = state.access.asks_for_key
        self._share(model)
        told = {**facts, "chats": chats, "asks_for_key": asks, "cold_start_ms": ledger}
        LOG.info("ready", extra=told)

    def _take_requests(self, model: LoadedModel) -> None:
        """Take requests from now on; return when the last weights are there.

        What is asked meanwhile is computed as weights arrive. Balancers are told to wait.
        """
        state = self._state
        state.phase, state.is_arriving = "weights", True
        entry = state.models.put(model, state.options.aliases)
        if state.options.loras:
            from zse.serve.adapters import put_adapters

            put_adapters(state.models, entry, state.options.load.lora)
        if not self._release_held(model) and state.ledger.work() is not None:
            from zse.serve.openai.protocol import prepare_reading

            prepare_reading()  # while weights are awaited
        model.settle()
        garbage_collection.resume()
        state.ledger.mark("ready")
        for name, times in early.times.items():
            state.ledger.note(name, *times)
        state.is_arriving = False

    def _release_held(self, model: LoadedModel) -> bool:
        """Let requests go on that wait for the model; whether there were any."""
        if not self._state.options.hold_seconds:
            return False
        from zse.serve.held_requests import HeldRequests

        held = self._state.made(HeldRequests)
        if held is None:
            return False
        is_awaited = held.num_waiting > 0
        if is_awaited:
            model.engine.expect_request(held.most_tokens)
        held.release()
        return is_awaited

    def _share(self, model: LoadedModel) -> None:
        """Give the model's file to replicas that start, where that is wanted, beside answers."""
        if self._state.options.peering.share_weights:
            threading.Thread(
                target=self._share_now, args=(model,), name="peers-begin", daemon=True
            ).start()

    def _share_now(self, model: LoadedModel) -> None:
        time.sleep(_FIRST_ANSWER_SECONDS)
        from zse.serve.lending import begin_lending
        from zse.serve.sharing import begin_sharing

        try:
            begin_lending(model, self._state.options)
        except (ZSEError, OSError) as error:
            LOG.warning("weights are not lent to replicas on this host: %s", error)
        try:
            self._sharing = begin_sharing(model, self._state.options)
        except (ZSEError, OSError, ValueError) as error:  # or the server is closing under it
            LOG.warning("weights are not shared: %s", error)

    def _close(self, model: LoadedModel) -> None:
        try:
            model.close()
        except Exception:
            if self._exit_code == 0:
                raise
            LOG.warning("the model could not be closed", exc_info=True)  # of a lost device

    def _give_up(self, error: BaseException) -> None:
        from zse.serve.failures import report_failure

        self._state.phase = "failed"
        self._exit_code = report_failure("the model could not be loaded", error, self._settings)
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self, server: HTTPServer, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._state.ledger.mark("answering")
        self._is_answering.set()
        beside = [
            asyncio.create_task(work) for work in (self._end_when_crashed(), warm(self._state))
        ]
        if self._state.fleet is not None:
            beside.append(asyncio.create_task(self._state.fleet.run()))
        await self._accept(server, listener)
        await self._state.access.close()
        if self._state.options.server_tools.mcp:
            from zse.serve.toolbox import Toolbox

            toolbox = self._state.made(Toolbox)
            if toolbox is not None:
                await asyncio.to_thread(toolbox.close)
        for task in beside:
            task.cancel()

    async def _accept(self, server: HTTPServer, listener: socket.socket) -> None:
        """Accept connections until the end: from now on, or once a predecessor can be relieved."""
        if self._predecessor is not None:
            while not self._state.is_ready:
                if server.should_exit or self._drainer is not None:
                    return
                await asyncio.sleep(LOOK_SECONDS)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        path = self._settings.serve.handover
        if path:
            await self._offer(path, server, listener, serving)
        await serving

    async def _offer(
        self,
        path: str,
        server: HTTPServer,
        listener: socket.socket,
        serving: asyncio.Task[None],
    ) -> None:
        """Relieve the predecessor, and offer the socket to a successor while this one serves."""
        from zse.serve.handover import Offer

        while not (server.started or serving.done()):
            await asyncio.sleep(LOOK_SECONDS)
        if self._predecessor is not None:
            self._predecessor.relieve()
        offer = Offer(path, listener, on_relieved=self._on_relieved)
        offer.open()
        try:
            await asyncio.shield(serving)
        finally:
            offer.close()

    def _on_relieved(self) -> None:
        if self._drainer is not None:
            return
        LOG.info("relieved", extra={"in_flight": self._state.in_flight})
        seconds = self._settings.serve.drain_seconds
        self._drainer = asyncio.create_task(self._departure().hand_over(drain_seconds=seconds))

    def _departure(self) -> Departure:
        assert self._server is not None
        return Departure(self._state, self._server)

    async def _end_when_crashed(self) -> None:
        """End the process when an engine has crashed: nothing in it can be answered any more."""
        failure = await crashed(self._state, self._settings)
        self._exit_code = getattr(failure, "exit_code", 1)
        LOG.critical(
            "the engine crashed, the server stops: %s",
            failure,
            extra={"exit_code": self._exit_code, "hint": getattr(failure, "hint", "")},
        )
        await self._departure().drain(leave_seconds=0, drain_seconds=END_SECONDS)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._drainer is not None:
            LOG.warning("second signal: stopping now", extra={"signal": number.name})
            self._state.terminate.set()
            return
        LOG.info("draining", extra={"signal": number.name, "in_flight": self._state.in_flight})
        options = self._settings.serve
        self._drainer = asyncio.create_task(
            self._departure().drain(
                leave_seconds=options.leave_seconds, drain_seconds=options.drain_seconds
            )
        )
