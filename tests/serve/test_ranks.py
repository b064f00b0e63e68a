"""A server whose model several processes compute: its answers, and what becomes of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import stub_libcuda
from child_processes import children_of, is_gone, wait_until
from sample_packs import write_stub_pack
from started_server import StartedServer

from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-m", "zse.serve", "tiny", "--port", "0", "--device", "cpu"]
RANKS = ["--tensor-parallel", "2", "--threads", "2"]
PROMPT = "The capital of France is"


STAGES = ["--pipeline-parallel", "2", "--threads", "2"]


def start(*flags: str, ranks: list[str] = RANKS) -> StartedServer:
    return StartedServer([*COMMAND, *ranks, *flags], {})


def ask(server: StartedServer, path: str = "/v1/completions", **body: Any) -> Any:
    given = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **body}
    request = urllib.request.Request(
        server.url + path,
        data=json.dumps(given).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def text_of(server: StartedServer, **body: Any) -> str:
    text: str = ask(server, **body)["choices"][0]["text"]
    return text


@pytest.fixture(scope="module")
def expected() -> Iterator[str]:
    with LLM("tiny", device="cpu", threads=1) as llm:
        params = SamplingParams(max_tokens=24, temperature=0)
        yield llm.generate(PROMPT, params)[0].text


@pytest.fixture(scope="module")
def server() -> Iterator[StartedServer]:
    started = start("--restart-ranks")
    yield started
    assert started.stop() == 0
    assert not children_of(os.getpid()) or all(map(is_gone, children_of(started._process.pid)))


def test_ranks_answer_as_one_process_does(server: StartedServer, expected: str) -> None:
    assert len(children_of(server._process.pid)) == 1
    assert text_of(server) == expected
    seeded = [text_of(server, temperature=1.0, seed=7, top_p=0.9) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert text_of(server, presence_penalty=1.5, frequency_penalty=0.5)


def test_answers_that_are_held_to_a_form_fit_it(server: StartedServer) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = text_of(
        server,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        max_tokens=60,
    )
    assert isinstance(json.loads(answer)["n"], int)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.nightly),
        pytest.param(signal.SIGSTOP, id="stopped"),
    ],
)
def test_a_rank_that_is_lost_is_started_again_with_all_others(
    number: signal.Signals, expected: str
) -> None:
    server = start("--restart-ranks")
    before = children_of(server._process.pid)
    os.kill(before[0], number)
    wait_until(lambda: any('"ready again"' in line for line in server.log))
    assert text_of(server) == expected
    after = children_of(server._process.pid)
    assert len(after) == 1
    assert not set(before) & set(after)
    assert server.stop() == 0
    assert all(map(is_gone, after))


def test_stages_answer_as_one_process_does_and_again_after_one_was_lost(expected: str) -> None:
    server = start("--restart-ranks", ranks=STAGES)
    [stage] = children_of(server._process.pid)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: text_of(server), range(4)))
    assert texts == [expected] * 4
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    told = text_of(server, response_format=form, max_tokens=60, temperature=1.0, seed=3)
    assert isinstance(json.loads(told)["n"], int)
    os.kill(stage, signal.SIGSTOP)
    with pytest.raises(urllib.error.HTTPError) as caught:
        text_of(server)
    caught.value.close()
    wait_until(lambda: any('"ready again"' in line for line in server.log))
    assert text_of(server) == expected
    assert server.stop() == 0
    assert is_gone(stage)


def test_a_rank_that_is_killed_ends_the_server_and_all_ranks() -> None:
    server = start()
    ranks = children_of(server._process.pid)
    os.kill(ranks[0], signal.SIGKILL)
    assert server._process.wait(60) == DeviceError.exit_code
    assert all(map(is_gone, ranks))
    assert server.stop() == DeviceError.exit_code
    assert any("rank 1 (cpu) was ended by SIGKILL" in line for line in server.log)


def test_ranks_end_with_a_server_that_is_killed_even_those_that_are_stopped() -> None:
    server = start()
    ranks = children_of(server._process.pid)
    os.kill(ranks[0], signal.SIGSTOP)
    server._process.kill()
    wait_until(lambda: all(map(is_gone, ranks)))
    server.stop()


def test_a_request_in_flight_is_told_that_a_rank_has_failed(server: StartedServer) -> None:
    ranks = children_of(server._process.pid)
    os.kill(ranks[0], signal.SIGSTOP)
    with pytest.raises(urllib.error.HTTPError) as caught:
        text_of(server)
    with caught.value as answer:
        assert answer.code >= 500
    wait_until(lambda: any('"ready again"' in line for line in server.log))


def test_two_ranks_share_one_gpu_and_its_memory(tmp_path: Path) -> None:
    """The stub driver stands for the GPU: its kernels compute nothing, and nobody waits in one."""
    pack = write_stub_pack(tmp_path / "sm_90.zkp")
    command = [sys.executable, "-m", "zse.serve", "tiny", "--port", "0", "--device", "cuda"]
    server = StartedServer(
        [*command, "--kernels", str(pack), "--tensor-parallel", "2", "--gpus", "0,0"],
        {"LD_LIBRARY_PATH": str(stub_libcuda.build().parent), "ZSE_STUB_TOTAL": str(4 << 30)},
    )
    assert len(children_of(server._process.pid)) == 1
    assert ask(server, ignore_eos=True)["usage"]["completion_tokens"] == 24
    assert server.stop() == 0
    assert any("GPU 0 computes for 2 ranks, which take turns" in line for line in server.log)
