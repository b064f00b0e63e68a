"""Requests that come before the model is there: held, taken while its weights arrive, or told why.

The GPU is the stub driver, whose kernels compute nothing: what an answer says is no matter here.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import stub_libcuda
from range_server import serving
from sample_packs import write_stub_pack

from zse.format import ZSEReader
from zse.quantize.locate import locate_model
from zse.settings import Settings

QUESTION = {"model": "default", "prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_stub_pack(tmp_path_factory.mktemp("kernels") / "sm_90.zkp")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("made")), quant="int4")


class HeldOrigin:
    """An object server that keeps the last group to itself until it is told to give it, or not."""

    def __init__(self, origin, model):
        with ZSEReader(model) as reader:
            self.last = reader.header.groups[-1]
        self.asked, self.gives, self.fails = threading.Event(), threading.Event(), False
        origin.fault = self._fault

    def _fault(self, request):
        first, last = request.wanted()
        if first >= self.last.end_bytes or last < self.last.offset_bytes:
            return False
        self.asked.set()
        self.gives.wait(120)
        if self.fails:
            request.answer(403)
        return self.fails


@pytest.fixture
def start(start_command, pack, model):
    """Start a server of an object; return it and what holds the last group."""
    with serving("/model.zse", model.read_bytes()) as origin:
        held = HeldOrigin(origin, model)

        def begin(*flags):
            server = start_command(
                "-m", "zse.serve", f"{origin.url}/model.zse", "--device", "cuda", "--port", "0",
                "--kernels", str(pack), *flags,
                LD_LIBRARY_PATH=str(stub_libcuda.build().parent),
                ZSE_STUB_TOTAL=str(4 << 30),
            )  # fmt: skip
            return server, held

        yield begin
        held.gives.set()


def wait_for_model(server):
    """Return when the server lists its model, which it can be asked for then."""
    for _ in range(2000):
        if server.http.get("/v1/models").status_code == 200:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no model was listed")


def test_a_request_is_held_then_computed_with_what_is_there_and_answered_when_all_is(start):
    server, held = start("--hold-seconds", "120")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, "/v1/completions", json=QUESTION)
        assert held.asked.wait(120)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            while other.get("/v1/models").status_code != 200:
                threading.Event().wait(0.01)
            health = other.get("/health/ready")
            assert health.status_code == 503  # balancers wait for the last weight
            assert "loading weights" in health.json()["error"]["message"]
            assert other.get("/health/live").status_code == 200
        assert not answer.done()
        held.gives.set()
        found = answer.result(120)
    assert found.status_code == 200
    assert found.json()["usage"]["completion_tokens"] == 1
    server.wait_for_line("ready")
    assert server.http.get("/health/ready").status_code == 200
    phases = server.http.get("/health/ready").json()["phases"]
    assert phases["weights-to-gpu"]["end_ms"] <= phases["ready"]["end_ms"]
    assert server.stop() == 0


def test_weights_that_never_come_end_a_request_and_the_server_with_their_own_error(start):
    server, held = start("--hold-seconds", "120")
    held.fails = True
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, "/v1/completions", json=QUESTION)
        assert held.asked.wait(120)
        held.gives.set()
        try:
            found = answer.result(120)
        except httpx.HTTPError:  # the server has gone
            found = None
    code = server.process.wait(60)
    text = "".join(server.raw)
    assert code not in (0, -9, -11)
    assert "the model could not be loaded" in text
    assert "403" in text
    assert found is None or (found.status_code >= 500 and "choices" not in found.json())


def test_a_server_that_is_stopped_while_weights_arrive_leaves_at_once(start):
    server, held = start("--drain-seconds", "1")
    wait_for_model(server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.http.post, "/v1/completions", json=QUESTION)
        assert held.asked.wait(120)
        threading.Event().wait(0.1)
        server.process.terminate()
        held.gives.wait(1.5)
        held.gives.set()
        with contextlib.suppress(httpx.HTTPError):
            assert answer.result(120).status_code >= 500
    assert server.process.wait(60) == 0
    assert "could not be loaded" not in "".join(server.raw)


def test_without_a_time_to_hold_them_requests_are_refused_until_the_model_can_be_asked(start):
    server, held = start()
    refused = server.http.post("/v1/completions", json=QUESTION)
    assert refused.status_code in (200, 503)  # a start may be that quick
    if refused.status_code == 503:
        assert int(refused.headers["retry-after"]) >= 1
    held.gives.set()
    server.wait_for_line("ready")
    assert server.http.post("/v1/completions", json=QUESTION).status_code == 200


def test_a_gpu_that_was_fed_from_an_address_shares_what_it_got(start, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of sixteen")
    server, held = start("--share-weights", "--share-port", "0", "--peer-secret-file", str(secret))
    held.gives.set()
    server.wait_for_line("weights are shared")
    assert server.stop() == 0
