"""One start, watched from outside: a server that is scripted, or none at all."""

import sys
from pathlib import Path

import pytest

from zse.deploy.errors import ColdStartError
from zse.deploy.measure.start import Subject, measure_start

ROOT = Path(__file__).parents[3]
SCRIPTED = str(Path(__file__).parent / "scripted_endpoint.py")


def subject(*command: str, **environment: str) -> Subject:
    return Subject(
        name="t",
        how="process",
        command=lambda port: [sys.executable, *command],
        environment={"PYTHONPATH": str(ROOT), **environment},
    )


def test_milestones_come_in_order_and_the_server_tells_its_phases():
    start = measure_start(subject(SCRIPTED, LOAD_SECONDS="0.5"), timeout_seconds=60)
    live, ready, first_token = start.milestones.values()
    assert 0 < live <= ready <= first_token
    assert ready >= 500
    assert {"interpreter", "ready"} <= start.ledger.keys()
    assert start.ledger["ready"].end_ms > 0


def test_a_server_that_ends_is_quoted():
    broken = subject("-c", "import sys; sys.exit('no such model: x')")
    with pytest.raises(ColdStartError, match=r"(?s)code 1.*no such model: x"):
        measure_start(broken, timeout_seconds=60)


def test_a_server_that_never_gets_ready_is_given_up():
    slow = subject(SCRIPTED, LOAD_SECONDS="300")
    with pytest.raises(ColdStartError, match="was not answered with 200 in 3 s"):
        measure_start(slow, timeout_seconds=3)


def test_a_server_that_answers_nothing_of_the_kind_is_no_endpoint():
    code = (
        "import http.server, os\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def do_POST(self): self.send_error(404)\n"
        "http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n"
    )
    with pytest.raises(ColdStartError, match="the question was answered with 404"):
        measure_start(subject("-c", code), timeout_seconds=60)
