"""Spans on their way to a collector, by OpenTelemetry's exporter (extra ``otel``).

A request writes down what it did when it ends; a thread of its own imports the library when the
first span comes, and sends. A collector that is away costs spans and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.errors import BadSettingError, MissingDependencyError
from zse.install import install_hint
from zse.serve.telemetry.trace import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.serve.telemetry.trace import Place, Span

LOG = logging.getLogger("zse.serve.tracing")

MAX_WAITING = 8192
MAX_BATCH = 512
SEND_SECONDS = 1.0
"""How long spans gather before they are sent."""
FLUSH_SECONDS = 5.0
WARN_SECONDS = 60.0
_END = None


class Tracing:
    """Takes spans from any thread.

    Args:
        endpoint: The collector's address; ``/v1/traces`` is added.
        ratio: Share of requests that are traced where their clients do not say.
        send: Hands a batch over and says whether it arrived; made of the library when left out.

    Raises:
        BadSettingError: The address is none of HTTP.
        MissingDependencyError: The extra is not installed.
    """

    def __init__(
        self, endpoint: str, ratio: float, send: Callable[[list[Span]], bool] | None = None
    ) -> None:
        if send is None and not endpoint.startswith(("http://", "https://")):
            raise BadSettingError(
                f"otlp_endpoint is {endpoint!r}, expected an address of HTTP",
                hint="For example: --otlp-endpoint http://127.0.0.1:4318",
            )
        if send is None and find_spec("opentelemetry.exporter") is None:
            raise MissingDependencyError(
                "traces were asked for (--otlp-endpoint), and OpenTelemetry is not installed",
                hint=install_hint("otel"),
            )
        self._ratio = ratio
        self._endpoint = endpoint
        self._send = send
        self._spans: queue.Queue[Span | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._warned_at = 0.0
        self.num_lost = 0

    def place_of(self, traceparent: bytes) -> Place | None:
        """Return the place of a request with this header; None where it is not to be traced."""
        return place_of(traceparent, self._ratio)

    def add(self, spans: Sequence[Span]) -> None:
        """Take spans that have ended; when too many wait, they are lost and counted."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
                self._thread.start()
        for span in spans:
            try:
                self._spans.put_nowait(span)
            except queue.Full:
                self.num_lost += 1

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        if self._thread is None:
            return
        try:
            self._spans.put(_END, timeout=FLUSH_SECONDS)
        except queue.Full:
            return
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        send = self._send or exporter(self._endpoint)
        is_over = False
        while not is_over:
            batch, is_over = self._gather()
            if batch and not send(batch):
                self.num_lost += len(batch)
                self._warn()

    def _gather(self) -> tuple[list[Span], bool]:
        """Wait for a span, and for those that follow it within a moment."""
        batch: list[Span] = []
        deadline = float("inf")
        while len(batch) < MAX_BATCH:
            left = deadline - time.monotonic()
            try:
                span = self._spans.get(timeout=None if not batch else max(left, 0.0))
            except queue.Empty:
                break
            if span is _END:
                return batch, True
            batch.append(span)
            deadline = min(deadline, time.monotonic() + SEND_SECONDS)
        return batch, False

    def _warn(self) -> None:
        if time.monotonic() - self._warned_at > WARN_SECONDS:
            self._warned_at = time.monotonic()
            LOG.warning("traces do not arrive", extra={"spans_lost": self.num_lost})


def exporter(endpoint: str) -> Callable[[list[Span]], bool]:
    """Import the library; return what sends a batch of spans and says whether it arrived."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes before ours.
    ours = Resource({SERVICE_NAME: "zse", SERVICE_VERSION: __version__})
    resource = ours.merge(Resource.create({}))
    sender = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")

    def send(spans: list[Span]) -> bool:
        try:
            result = sender.export([_readable(span, resource) for span in spans])
        except Exception as error:
            LOG.debug("the collector refused spans", exc_info=error)
            return False
        return result is SpanExportResult.SUCCESS

    return send


def _readable(span: Span, resource: Any) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(span_id: int, *, is_remote: bool) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(span.place.trace_id, span_id, is_remote=is_remote, trace_flags=flags)

    is_server = span.kind == "server"
    parent = span.place.parent_id
    return ReadableSpan(
        name=span.name,
        context=context(span.place.span_id, is_remote=False),
        parent=None if parent is None else context(parent, is_remote=is_server),
        resource=resource,
        attributes=dict(span.attributes),
        kind=SpanKind.SERVER if is_server else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("zse", __version__),
    )
