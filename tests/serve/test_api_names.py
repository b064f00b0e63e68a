"""Import paths that programs know from elsewhere lead to what stands."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest

from zse.errors import UsageError

ROOT = Path(__file__).parents[2]
RUN = "from zse.api.server import run_server; raise SystemExit(run_server(host='127.0.0.1', port=0{}))"


@pytest.mark.slow
def test_run_server_serves_until_a_signal(start_command):
    child = start_command("-c", RUN.format(", model='tiny', device='cpu', max_context=256"))
    child.wait_for_line("ready")
    model = child.http.get("/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)
    answer = child.http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 4}).json()
    assert answer["usage"]["completion_tokens"] >= 1
    assert child.stop() == 0


def test_an_option_that_does_not_exist_or_fit_is_refused():
    from zse.api.server import run_server

    with pytest.raises(UsageError, match="port"):
        run_server(port=70000)
    with pytest.raises(UsageError, match="no_such_option"):
        run_server(no_such_option=1)


def test_run_server_has_the_defaults_of_its_signature():
    from zse.api.server import run_server

    defaults = {p.name: p.default for p in inspect.signature(run_server).parameters.values()}
    assert (defaults["host"], defaults["port"]) == ("127.0.0.1", 8000)


def test_batching_of_a_server_is_one_state_for_all_its_models(state, call):
    from zse.api.server.batching import (
        BatchingState,
        batched_chat_completion,
        batched_text_completion,
    )

    batching = BatchingState(state)
    batching.disable("scripted")
    assert call("GET", "/api/batching").json()["enabled"] is False
    batching.enable()
    assert batching.status().enabled
    handlers = {getattr(route.endpoint, "__name__", "") for route in call.routes}
    names = {batched_chat_completion.__name__, batched_text_completion.__name__}
    assert names <= handlers


KNOWN_ELSEWHERE = {
    "zse.api.server": ("run_server",),
    "zse.api.server.audit": ("AuditLogger", "AuditMiddleware"),
    "zse.api.server.auth": ("SlidingWindowRateLimiter",),
    "zse.api.server.batching": (
        "BatchingState",
        "batched_chat_completion",
        "batched_text_completion",
    ),
    "zse.engine.batching": ("BatchConfig", "BatchRequest", "BatchingEngine"),
    "zse.engine.generation": (
        "BatchGenerator",
        "CachedTextGenerator",
        "InferenceEngine",
        "SamplingParams",
        "StopChecker",
        "StreamChunk",
        "TextGenerator",
    ),
    "zse.engine.orchestrator": ("InferenceStats", "IntelligenceOrchestrator", "load_model"),
    "zse.engine.scheduler": ("ContinuousBatchingScheduler",),
}


@pytest.mark.parametrize("module", KNOWN_ELSEWHERE)
def test_a_name_that_programs_know_is_there_and_in_the_guide(module):
    guide = (ROOT / "docs/guides/python.md").read_text()
    rows = re.findall(rf"^\| `from {re.escape(module)} import (.+?)` \| \S", guide, re.MULTILINE)
    assert sorted(", ".join(rows).split(", ")) == sorted(KNOWN_ELSEWHERE[module])
    found = import_module(module)
    assert all(callable(getattr(found, name)) for name in KNOWN_ELSEWHERE[module])


@pytest.mark.parametrize(
    ("name", "stands_for"),
    [
        ("zse.api.server.audit:AuditLogger", "zse.serve.audit.log:AuditLog"),
        ("zse.api.server.audit:AuditMiddleware", "zse.serve.audit.auditing:Auditing"),
        ("zse.api.server.auth:SlidingWindowRateLimiter", "zse.serve.access.limits:Limits"),
        ("zse.engine.batching:BatchRequest", "zse.engine.request:Request"),
        ("zse.engine.generation:BatchGenerator", "zse:LLM"),
        ("zse.engine.generation:CachedTextGenerator", "zse:LLM"),
        ("zse.engine.generation:InferenceEngine", "zse.engine.core:EngineCore"),
        ("zse.engine.generation:SamplingParams", "zse:SamplingParams"),
        ("zse.engine.generation:StopChecker", "zse.text.stop:StopChecker"),
        ("zse.engine.generation:StreamChunk", "zse:Delta"),
        ("zse.engine.generation:TextGenerator", "zse:LLM"),
        ("zse.engine.scheduler:ContinuousBatchingScheduler", "zse.engine.scheduler:Scheduler"),
    ],
)
def test_another_name_is_the_thing_itself(name, stands_for):
    assert resolve_name(name) is resolve_name(stands_for)
