"""Traces: a request's spans, its place beside the client's, a collector that is there or not."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from zse.errors import BadSettingError, MissingDependencyError
from zse.serve.telemetry import tracing
from zse.serve.telemetry.trace import Place, Span, place_of
from zse.serve.telemetry.tracing import Tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """Takes spans in place of the library."""

    def __init__(self, arrives=True):
        self.spans = []
        self.arrives = arrives
        self.called = threading.Event()

    def __call__(self, batch):
        self.spans += batch
        self.called.set()
        return self.arrives


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def traced(state, collector):
    state.tracing = Tracing("", 1.0, send=collector)
    return state


def test_a_traceparent_names_the_trace_and_whose_child_we_are():
    place = place_of(f"00-{TRACE}-{PARENT}-01".encode(), ratio=0.0)
    assert (place.trace_hex, place.parent_id) == (TRACE, int(PARENT, 16))
    assert place.span_id != place.parent_id


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"00-" + b"0" * 32 + f"-{PARENT}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"ff-{TRACE}-{PARENT}-01".encode(),
        f"00-{TRACE.upper()}-{PARENT}-01".encode(),
        b"\xff" * 4000,
    ],
)
def test_a_header_that_says_nothing_begins_a_trace_of_its_own(header):
    place = place_of(header, ratio=1.0)
    assert place.parent_id is None
    assert place.trace_hex != TRACE
    assert place_of(header, ratio=0.0) is None


def test_a_client_that_does_not_sample_is_not_traced():
    assert place_of(f"00-{TRACE}-{PARENT}-00".encode(), ratio=1.0) is None


def test_a_request_has_spans_from_its_route_down_to_its_steps(traced, call, collector):
    call.chat("say:abc", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    traced.tracing.close()
    spans = {span.name: span for span in reversed(collector.spans)}
    assert set(spans) >= {
        "POST create_chat_completion", "generate", "queue", "prefill", "decode", "step",
    }  # fmt: skip
    root, work = spans["POST create_chat_completion"], spans["generate"]
    assert (root.kind, root.place.parent_id) == ("server", int(PARENT, 16))
    assert work.place.parent_id == root.place.span_id
    assert spans["decode"].place.parent_id == work.place.span_id
    steps = [span for span in collector.spans if span.name == "step"]
    phases = [spans["prefill"], *[spans["decode"]] * 3]
    assert [span.place.parent_id for span in steps] == [phase.place.span_id for phase in phases]
    assert [span.attributes["zse.step"] for span in steps] == [1, 2, 3, 4]
    assert work.attributes["zse.steps"] == 4
    assert {span.place.trace_hex for span in collector.spans} == {TRACE}
    assert work.attributes["gen_ai.usage.output_tokens"] == 3
    assert all(span.start_ns <= span.end_ns for span in collector.spans)
    assert "abc" not in json.dumps([dict(span.attributes) for span in collector.spans])


def test_log_lines_name_the_trace(traced, call, caplog):
    caplog.set_level("INFO", logger="zse.serve")
    call.chat("say:a", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    told = [line for line in caplog.records if line.message in {"generation", "response"}]
    assert {line.trace_id for line in told} == {TRACE}


def test_probes_are_not_traced(traced, call, collector):
    call("GET", "/health")
    traced.tracing.close()
    assert collector.spans == []


def test_without_a_collector_requests_are_not_traced(state, call, caplog):
    caplog.set_level("INFO", logger="zse.serve")
    call.chat("say:a", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert not any(hasattr(line, "trace_id") for line in caplog.records)


def test_spans_that_do_not_arrive_are_counted_and_nothing_else_happens():
    collector = Collector(arrives=False)
    sender = Tracing("", 1.0, send=collector)
    sender.add([Span(name="a", place=Place(trace_id=1, span_id=2), start_ns=0, end_ns=1)])
    sender.close()
    assert sender.num_lost == 1


def test_more_spans_than_wait_are_lost_and_counted(monkeypatch):
    monkeypatch.setattr(tracing, "MAX_WAITING", 4)
    gate = threading.Event()
    sender = Tracing("", 1.0, send=lambda _batch: gate.wait(60))
    span = Span(name="a", place=Place(trace_id=1, span_id=2), start_ns=0, end_ns=1)
    for _ in range(2000):
        sender.add([span])
    assert sender.num_lost > 0
    gate.set()


def test_the_extra_is_asked_for_at_the_start(monkeypatch):
    monkeypatch.setattr(tracing, "find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match="OpenTelemetry"):
        Tracing("http://127.0.0.1:4318", 1.0)


@pytest.mark.parametrize("endpoint", ["collector", "127.0.0.1:4318", "grpc://collector:4317"])
def test_an_address_that_nothing_can_be_sent_to_is_refused_at_the_start(endpoint):
    with pytest.raises(BadSettingError, match="otlp_endpoint"):
        Tracing(endpoint, 1.0)


def test_the_library_sends_what_a_collector_understands():
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sender = Tracing(f"http://127.0.0.1:{server.server_port}/", 1.0)
    place = Place(trace_id=int(TRACE, 16), span_id=7, parent_id=int(PARENT, 16))
    sender.add([Span(name="the span", place=place, start_ns=10, end_ns=20, attributes={"a": 1})])
    sender.close()
    server.shutdown()
    server.server_close()
    assert sender.num_lost == 0
    (path, kind, body), *_ = received
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex()) == ("the span", TRACE)
    assert span.parent_span_id.hex() == PARENT
    assert any(one.key == "service.name" for one in resource.resource.attributes)
