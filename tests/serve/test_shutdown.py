"""Servers that end, and servers that relieve each other: nothing that was accepted is lost."""

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from zse.serve.shutdown import Departure, Presence

ROOT = Path(__file__).parents[2]
PACED = str(Path(__file__).parent / "paced_server.py")
RESTARTS = ROOT / "scripts" / "bench" / "rolling_restarts.py"
COMPLETIONS = "/v1/completions"
READY = "/health/ready"
PATIENT = ["--drain-seconds", "300"]  # a client on a busy machine may read for long


def test_a_server_that_leaves_is_not_ready_and_answers_and_closes_behind_it(call, state):
    assert "connection" not in call.complete("say:a").headers
    state.presence = Presence.LEAVING
    assert call("GET", READY).status_code == 503
    assert call("GET", "/ping").status_code == 503
    response = call.complete("say:a")
    assert (response.status_code, response.headers["connection"]) == (200, "close")
    state.presence = Presence.CLOSED
    assert call.complete("say:a").status_code == 503


def test_a_drain_waits_for_clients_that_have_not_read_all_of_their_answers(state, runner):
    server = SimpleNamespace(is_writing=True, should_exit=False)

    async def drain():
        leaving = Departure(state, server).drain(leave_seconds=0, drain_seconds=600)
        draining = asyncio.create_task(leaving)
        await asyncio.sleep(0.1)
        assert not server.should_exit
        server.is_writing = False
        await draining

    runner.run(drain())
    assert server.should_exit


@pytest.fixture
def start_paced(start_command):
    def start(*flags, **environment):
        command = [PACED, "--port", "0", "--log-format", "json", *flags]
        return start_command(*command, **environment)

    return start


def test_after_sigterm_new_work_is_answered_until_balancers_have_noticed(start_paced):
    server = start_paced("--leave-seconds", "60")
    server.wait_for_line("ready")
    assert server.http.get(READY).status_code == 200
    server.process.terminate()
    server.wait_for_line("draining")
    assert server.http.get(READY).status_code == 503
    response = server.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 4})
    assert (response.status_code, response.headers["connection"]) == (200, "close")
    server.process.terminate()  # the second signal does not wait
    assert server.process.wait(60) == 0


def test_an_answer_that_the_engine_has_made_is_handed_over_before_the_end(start_paced):
    """The engine is done long before its client has read: so many frames fill every buffer."""
    flags = ["--step-ms", "0", "--max-unread", "200000", *PATIENT]
    server = start_paced(*flags, ZSE_WRITE_TIMEOUT="300")
    server.wait_for_line("ready")
    body = {"prompt": "x", "max_tokens": 12_000, "stream": True, "ignore_eos": True}
    with server.http.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        server.wait_for_gauge("zse_in_flight", 0)
        server.process.terminate()
        server.wait_for_line("draining")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 11_000
    assert server.process.wait(60) == 0


def test_the_next_server_takes_the_port_over_and_no_request_is_lost(start_command, tmp_path):
    flags = [PACED, "--port", "0", "--handover", str(tmp_path / "h"), "--log-format", "json"]
    flags += PATIENT
    first = start_command(*flags)
    first.wait_for_line("ready")
    statuses, stops = [], threading.Event()

    def ask():
        with httpx.Client(base_url=first.url, timeout=60) as client:
            while not stops.is_set():
                response = client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 5})
                statuses.append(response.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    long = {"prompt": "x", "max_tokens": 200}
    with first.http.stream("POST", COMPLETIONS, json={**long, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        second = start_command(*flags, "--load-seconds", "0.5")
        assert second.port == first.port
        first.wait_for_line("relieved")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert first.process.wait(60) == 0
    assert second.http.post(COMPLETIONS, json=long).status_code == 200
    stops.set()
    thread.join()
    assert set(statuses) == {200}
    assert second.stop() == 0
    assert not (tmp_path / "h").exists()


def test_a_connection_that_was_kept_is_answered_once_more_by_who_was_relieved(
    start_command, tmp_path
):
    flags = [PACED, "--port", "0", "--handover", str(tmp_path / "h"), "--log-format", "json"]
    flags += PATIENT
    first = start_command(*flags)
    first.wait_for_line("ready")
    kept = HTTPConnection("127.0.0.1", first.port)

    def ask():
        kept.request("GET", "/v1/models")
        response = kept.getresponse()
        response.read()
        return response.status, response.getheader("connection")

    assert ask() == (200, None)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(start_command, *flags)
        answer = ask()
        while answer[1] is None and not any(one["message"] == "relieved" for one in first.lines):
            time.sleep(0.1)
            answer = ask()
        if answer[1] is None:
            time.sleep(1.5)  # longer than it waits for connections that are on their way
            answer = ask()
        second = starting.result()
    assert answer == (200, "close")
    assert first.process.wait(60) == 0
    assert second.stop() == 0


def test_a_successor_that_cannot_load_leaves_the_port_to_who_has_it(start_command, tmp_path):
    path = str(tmp_path / "h")
    first = start_command(PACED, "--port", "0", "--handover", path, "--log-format", "json")
    first.wait_for_line("ready")
    command = [sys.executable, "-m", "zse.serve", "no-such.zse", "--port", "0"]
    second = subprocess.run(
        [*command, "--handover", path], capture_output=True, timeout=120, check=False
    )
    assert second.returncode != 0
    assert first.http.get(READY).status_code == 200
    assert first.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("restarts", [4, pytest.param(10, marks=pytest.mark.nightly)])
def test_no_request_is_lost_in_restarts_under_load(restarts):
    command = [sys.executable, str(RESTARTS), "--restarts", str(restarts), "--clients", "2"]
    run = subprocess.run([*command, "--pause", "0.02"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
