"""What a person at a terminal reads while a server starts and runs."""

import io
import logging
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from zse.serve.console import Terminal, text_of
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.telemetry.logs import LineFormatter, is_for_people
from zse.settings import subprocess_environment

SCRIPT = Path(__file__).parent / "scripted_server.py"
ROOT = str(Path(__file__).parents[2])


def line_of(message, level="info", **extra):
    return text_of({"time": "", "level": level, "logger": "zse", "message": message, **extra})


def ready(**changes):
    cold = {"ready": {"start_ms": 0.0, "end_ms": 3100.0, "duration_ms": 3100.0}}
    facts = {"model": "it's", "url": "http://127.0.0.1:8000", "max_context": 2048, "chats": True}
    return line_of("ready", cold_start_ms=cold, **{**facts, **changes})


def test_ready_is_a_url_and_a_line_to_copy_that_the_server_answers(call):
    lines = ready(model="scripted").splitlines()
    assert lines[0] == "ready after 3.1 s: http://127.0.0.1:8000/v1, up to 2,048 tokens"
    assert lines[-1] == "Ctrl-C stops it."
    assert max(map(len, lines)) < 100
    command = shlex.split(" ".join(lines[2:4]).replace("\\\n", " ").replace("\\ ", " "))
    assert command[0] == "curl"
    path = command[1].removeprefix("http://127.0.0.1:8000")
    name, value = command[command.index("-H") + 1].split(": ")
    body = command[command.index("-d") + 1]
    assert call("POST", path, content=body, headers={name: value}).status_code == 200


def test_a_person_is_told_of_the_pages_where_there_are_some():
    pages = "In a browser: http://127.0.0.1:8000/dashboard, http://127.0.0.1:8000/chat"
    assert pages in ready(has_pages=True).splitlines()
    assert "browser" not in ready(has_pages=False)


def test_the_line_to_copy_shows_a_key_where_one_is_asked_for():
    words = shlex.split(ready(asks_for_key=True).replace("\\\n", " "))
    assert words[words.index("-H", words.index("-H") + 1) + 1] == "authorization: Bearer $KEY"
    assert "authorization" not in ready()


def test_the_line_to_copy_holds_whatever_a_model_is_called():
    assert "it" in shlex.split(ready().splitlines()[3])[1]


def test_a_model_without_a_template_is_asked_to_complete():
    assert "/v1/completions " in ready(chats=False)


def test_a_request_is_one_short_line():
    extra = {"request_id": "req_1", "method": "GET", "path": "/v1/models", "status": 200}
    assert line_of("response", duration_ms=3.4, **extra).endswith(" GET /v1/models 200, 3 ms")


def test_a_client_cannot_command_the_terminal_or_forge_a_line(caplog, call):
    caplog.set_level("INFO", logger="zse.serve.access")
    call("GET", "/%1b[2J%0aready%c2%9b")
    (record,) = [record for record in caplog.records if record.message == "response"]
    text = LineFormatter(text_of).format(record)
    assert "/?[2J?ready? 404" in text
    assert text.isprintable()


def test_what_has_no_words_of_its_own_is_level_message_values_and_hint():
    text = line_of("it is late", "warning", hint="go to bed", hour=3)
    assert text == "warning: it is late hour=3\nhint: go to bed"


def test_a_painted_line_is_replaced_by_what_happens():
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.setFormatter(LineFormatter(text_of))
    terminal.paint("loading weights (40%) ...")
    terminal.paint("loading weights (40%) ...")
    terminal.handle(logging.makeLogRecord({"msg": "news", "levelname": "INFO"}))
    assert stream.getvalue() == "\r\x1b[Kloading weights (40%) ...\r\x1b[Knews\n"


class Clock:
    """Seconds that a test says."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def state(clock):
    return AppState(ledger=Ledger(clock=clock))


def test_clients_read_what_a_start_is_busy_with_and_when_to_come_back(
    loading, state, clock, check_error
):
    def refusal():
        response = loading.chat()
        message = check_error(response, 503, code="server_is_overloaded", kind="server_error")
        return message, response.headers["retry-after"]

    assert refusal() == ("The model is not ready yet: starting.", "1")
    state.phase = "model-file"
    state.ledger.report("convert", 1, 100)
    clock.seconds = 10
    state.ledger.report("convert", 25, 100)
    assert refusal() == ("The model is not ready yet: converting the checkpoint (25%).", "30")
    assert loading("GET", "/health/live").json()["phase"] == "converting the checkpoint (25%)"
    assert "converting" in loading("GET", "/").json()["status"]
    state.ledger.report("convert", 100, 100)
    assert refusal() == ("The model is not ready yet: opening the model.", "1")
    state.phase = "weights"
    state.ledger.watch("weights", lambda: (43, 100))
    assert refusal()[0] == "The model is not ready yet: loading weights (43%)."
    state.phase = "engine"
    assert refusal()[0] == "The model is not ready yet: starting the engine."


def test_the_painted_line_follows_a_start_and_goes_when_it_is_over(state, scripted, monkeypatch):
    stream = io.StringIO()
    state.phase = "weights"
    state.ledger.report("convert", 25, 100)
    terminal = Terminal(stream)

    def sleep(seconds):
        state.models.put(scripted.scripted_model())

    monkeypatch.setattr("zse.serve.console.time.sleep", sleep)
    terminal._follow(state)
    painted = stream.getvalue().split("\r\x1b[K")
    assert (painted[0], painted[2:]) == ("", [""])
    assert re.fullmatch(r"converting the checkpoint \(25%\), .* left \.\.\.", painted[1])


def test_a_server_on_a_terminal_speaks_to_a_person_from_its_start_to_ctrl_c():
    ours, its = pty.openpty()
    environment = subprocess_environment(PYTHONPATH=ROOT)
    with subprocess.Popen([sys.executable, SCRIPT], stderr=its, env=environment) as process:
        os.close(its)
        text = ""
        while "Ctrl-C stops it." not in text:
            text += os.read(ours, 4096).decode()
        url = re.search(r"http://127\.0\.0\.1:\d+", text).group()
        assert (
            httpx.get(f"{url}/v1/models", timeout=60).status_code == 200
        )  # and so its signals are ours
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        while "stopped" not in text:
            text += os.read(ours, 4096).decode()
    os.close(ours)
    assert f"listens on {url}" in text
    assert f"In a browser: {url}/dashboard" in text
    assert "GET /v1/models 200" in text
    assert '{"time"' not in text


@pytest.mark.parametrize(
    ("log_format", "is_terminal", "process", "expected"),
    [
        ("auto", True, 7, True),
        ("auto", False, 7, False),
        ("auto", True, 1, False),
        ("text", False, 1, True),
        ("json", True, 7, False),
    ],
)
def test_words_are_for_terminals_and_json_for_containers(
    monkeypatch, log_format, is_terminal, process, expected
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("os.getpid", lambda: process)
    assert is_for_people(log_format) is expected
