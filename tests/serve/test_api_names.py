"""Import paths that programs know from elsewhere lead to what stands."""

import inspect

import pytest

from zse.errors import UsageError

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


def test_the_limiter_of_keys_has_its_other_name():
    from zse.api.server.auth import SlidingWindowRateLimiter
    from zse.serve.access.limits import Limits

    assert SlidingWindowRateLimiter is Limits
