"""A server whose model two processes compute on a real GPU each, or both on one in turns."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from child_processes import children_of, wait_until
from started_server import StartedServer

from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gpu
STEADY = [
    "--deterministic",
    *("--prefill-weights", "make"),  # one GPU reads the weights that two read
    *("--max-running", "4", "--kv-gib", "0.1"),
]
PROMPT = "The capital of France is"


def start(*flags: str) -> StartedServer:
    if not (pack := os.environ.get("ZSE_KERNELS", "")):
        pytest.skip("ZSE_KERNELS names no kernel pack")
    command = [sys.executable, "-m", "zse.serve", "tiny", "--port", "0", "--kernels", pack]
    return StartedServer([*command, "--device", "cuda", *STEADY, *flags], {})


def start_two(kind: str, *flags: str) -> StartedServer:
    gpus = "0,1" if count_devices(Driver()) > 1 else "0,0"
    return start(kind, "2", "--gpus", gpus, *flags)


def logprobs_of(server: StartedServer, **body: Any) -> list[float]:
    given = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 1}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps({**given, "ignore_eos": True, **body}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        found: list[float] = json.load(response)["choices"][0]["logprobs"]["token_logprobs"]
    return found


@pytest.fixture(scope="module")
def expected() -> Iterator[list[float]]:
    server = start()
    yield logprobs_of(server)
    assert server.stop() == 0


def test_stages_on_gpus_have_the_log_probabilities_of_one_to_the_bit(expected: list[float]) -> None:
    server = start_two("--pipeline-parallel")
    assert logprobs_of(server) == expected
    assert server.stop() == 0


def test_ranks_on_gpus_begin_as_one_does_and_a_lost_one_is_started_again(
    expected: list[float],
) -> None:
    server = start_two("--tensor-parallel", "--restart-ranks")
    first = logprobs_of(server)
    assert len(first) == 24
    assert first[0] == pytest.approx(expected[0], abs=0.05)
    [other] = children_of(server._process.pid)
    os.kill(other, signal.SIGKILL)
    wait_until(lambda: any('"ready again"' in line for line in server.log))
    assert logprobs_of(server) == first
    assert server.stop() == 0


def test_a_rank_that_stops_under_a_request_ends_the_server(expected: list[float]) -> None:
    del expected  # one server after the other: memory of the GPU is free then
    server = start_two("--tensor-parallel")
    [other] = children_of(server._process.pid)
    os.kill(other, signal.SIGSTOP)
    with pytest.raises((urllib.error.HTTPError, OSError)):
        logprobs_of(server)
    assert server._process.wait(60) == DeviceError.exit_code
    assert server.stop() == DeviceError.exit_code
