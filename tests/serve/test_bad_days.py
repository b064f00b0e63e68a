"""A device that is lost, and ends at awkward moments: everybody is answered, the process ends."""

import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from zse.errors import DeviceError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAILING = str(Path(__file__).parent / "failing_server.py")
CHAT = "/v1/chat/completions"


def body_of(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def ask_beside(server, answers, text, **fields):
    """Ask for a whole answer in a thread of its own."""

    def ask():
        answers.append(httpx.post(server.url + CHAT, json=body_of(text, **fields), timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_crash_answers_what_is_in_flight_and_ends_the_process(start_server):
    server = start_server("--drain-seconds", "300")
    server.wait_for_line("ready")
    answers = []
    with server.http.stream("POST", CHAT, json=body_of("slow:9000", stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        other = ask_beside(server, answers, "slow:9000")
        server.wait_for_gauge("zse_in_flight", 2)
        ask_beside(server, answers, "crash:3 slow:9").join()
        rest = [line for line in lines if line]
    other.join()
    assert '"error"' in rest[-1]
    assert "[DONE]" not in rest[-1]
    assert [answer.status_code for answer in answers] == [500, 500]
    assert server.process.wait(60) == DeviceError.exit_code
    line = server.wait_for_line("the engine crashed, the server stops: the device is gone")
    assert (line["level"], line["exit_code"]) == ("critical", DeviceError.exit_code)


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_failure(start_server):
    server = start_server()
    server.wait_for_line("ready")
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + b'{"prompt":')
    line = server.wait_for_line("response")
    assert (line["path"], line["status"]) == ("/v1/completions", 499)
    assert not [line for line in server.lines if line["level"] == "error"]


def test_an_idle_server_whose_engine_has_crashed_is_not_ready_and_ends(start_server, call, state):
    state.model.engine.failure = DeviceError("the device is gone")
    state.model.engine.is_healthy = False
    assert call("GET", "/health/ready").status_code == 503
    assert call("GET", "/health/live").status_code == 503
    server = start_server()
    server.wait_for_line("ready")
    answers = []
    ask_beside(server, answers, "crash:0").join()
    assert server.process.wait(60) == DeviceError.exit_code
    assert answers[0].status_code == 500


def test_a_device_lost_in_a_step_of_the_real_engine_fails_every_request(start_command):
    server = start_command(FAILING, "20", "4")
    server.wait_for_line("ready", seconds=300)
    answers = []
    long = {"max_tokens": 400, "min_tokens": 400}
    threads = [ask_beside(server, answers, f"Count to {i}.", **long) for i in range(3)]
    with server.http.stream("POST", CHAT, json=body_of("Hi", stream=True, **long)) as response:
        lines = [line for line in response.iter_lines() if line]
    for thread in threads:
        thread.join()
    assert lines[-1].startswith('data: {"error"')
    assert [answer.json()["error"]["type"] for answer in answers] == ["server_error"] * 3
    assert server.process.wait(60) == DeviceError.exit_code
    log = "".join(server.raw)
    assert "an illegal memory access" in log
    assert "terminate called" not in log


def test_sigterm_at_any_moment_of_a_load_ends_the_process_in_order(start_command):
    for tenths in range(0, 24, 3):
        server = start_command("-m", "zse.serve", "tiny", "--port", "0", "--device", "cpu")
        time.sleep(tenths / 10)
        assert server.stop(signal.SIGTERM) == 0, "".join(server.raw)
        assert "terminate called" not in "".join(server.raw)
