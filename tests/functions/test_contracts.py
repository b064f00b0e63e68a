"""What platforms demand of a started container: probes, ports, routes and the end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTED = str(ROOT / "tests" / "serve" / "scripted_server.py")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Container:
    """A process started as a platform starts the image."""

    def __init__(self, *command: str, port: int = 0, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        )
        self.port = port or self._port_of_log()
        self._drain_log = threading.Thread(target=self.process.stderr.read, daemon=True)
        self._drain_log.start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def _port_of_log(self) -> int:
        for line in self.process.stderr:
            if match := re.search(r'"port": ?(\d+)', line):
                return int(match[1])
        raise AssertionError("the server ended before it listened")

    def statuses_until(self, path: str, wanted: int) -> list[int]:
        """Ask like a probe until an answer is as wanted; return all answers."""
        found = []
        deadline = time.monotonic() + 120
        while not found or found[-1] != wanted:
            assert time.monotonic() < deadline, found[-5:]
            try:
                found.append(self.http.get(path).status_code)
            except httpx.TransportError:
                assert self.process.poll() is None
            time.sleep(0.02)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._drain_log.join()
        self.process.stderr.close()
        self.http.close()


@pytest.fixture
def start():
    children = []

    def begin(*command: str, **options) -> Container:
        children.append(Container(*command, **options))
        return children[-1]

    yield begin
    for child in children:
        child.close()


@pytest.fixture(scope="module")
def container(free_port):
    """SageMaker's way: the word ``serve``, the port in the environment."""
    port = free_port()
    child = Container(
        *["-m", "zse.serve", "serve"],
        port=port,
        PORT=str(port),
        ZSE_MODEL="tiny",
        ZSE_DEVICE="cpu",
    )
    child.statuses_until("/ping", 200)
    yield child
    child.close()


@pytest.mark.parametrize(
    ("path", "loading"),
    [
        ("/ping", 204),  # RunPod: initialising; SageMaker: not 200, so not in service
        ("/health/ready", 503),  # Kubernetes, Cloud Run, Azure, ECS: outside 2xx and 3xx
        ("/health", 503),
    ],
)
def test_a_probe_sees_loading_and_then_200(start, path, loading, tmp_path):
    child = start(SCRIPTED, "--load-until", str(tmp_path / "go on"))
    assert child.statuses_until(path, loading) == [loading]
    (tmp_path / "go on").touch()
    assert set(child.statuses_until(path, 200)[:-1]) <= {loading}


def test_liveness_is_200_while_the_model_loads(start):
    child = start(SCRIPTED, "--load-seconds", "300")
    assert child.statuses_until("/health/live", 200) == [200]
    assert child.http.get("/health/ready").status_code == 503


def test_the_port_of_the_environment_is_bound(container):
    assert container.http.get("/health/live").status_code == 200


def test_sagemaker_invocations_answer_at_once_and_as_a_stream(container):
    body = {"messages": QUESTION, "temperature": 0}
    answer = container.http.post("/invocations", json=body)
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    with container.http.stream("POST", "/invocations", json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-2]]
    assert "Paris" in "".join(delta.get("content", "") for delta in deltas)


def test_sigterm_lets_a_stream_end_and_the_process_leaves_with_zero(container):
    """Cloud Run gives 10 s, SageMaker and Kubernetes 30 s; the drain stays under what it is given."""
    body = {"prompt": "Once", "max_tokens": 24, "stream": True, "temperature": 0}
    with container.http.stream("POST", "/v1/completions", json=body) as response:
        pieces = response.iter_text()
        first = next(pieces)
        container.process.send_signal(signal.SIGTERM)
        rest = "".join(pieces)
    assert (first + rest).endswith("data: [DONE]\n\n")
    assert container.process.wait(60) == 0


def test_a_drain_that_runs_out_of_time_still_ends_in_order(start):
    child = start(SCRIPTED, "--drain-seconds", "0.2")
    child.statuses_until("/health/ready", 200)
    body = {"prompt": "slow:400", "max_tokens": 400, "stream": True}
    with child.http.stream("POST", "/v1/completions", json=body) as response:
        pieces = response.iter_text()
        next(pieces, "")
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(60) == 0
