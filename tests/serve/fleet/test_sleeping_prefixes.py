"""What a model's KV cache held waits in host memory while the model sleeps, where that is asked."""

from dataclasses import replace

import pytest

from zse.engine.prefixes.memory_store import forget_all
from zse.option import with_values
from zse.serve.fleet.fleet import Fleet
from zse.serve.ledger import Ledger
from zse.serve.state import AppState

SYSTEM = "You are a careful assistant. " * 8


@pytest.fixture
def state(state):
    options = with_values(state.options, {"prefix_store": "memory:"})
    settings = replace(state.settings, serve=options)
    own = AppState(ledger=Ledger(), options=options, settings=settings)
    own.fleet = Fleet(own)
    own.phase = "ready"
    forget_all()
    yield own
    for entry in own.models:
        entry.model.close()
    forget_all()


def cached_tokens(fleet, name):
    body = {"prompt": SYSTEM, "model": name, "max_tokens": 2, "temperature": 0}
    answer = fleet.call("POST", "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"].get("prompt_tokens_details") or {}
    return answer.json()["choices"][0]["text"], details.get("cached_tokens", 0)


def test_a_prompt_is_not_computed_again_after_a_sleep_of_level_1_and_is_after_one_of_level_2(fleet):
    said, cached = cached_tokens(fleet, "a")
    assert cached == 0
    for level, expected in ((1, True), (2, False)):
        assert fleet.call("POST", f"/sleep?level={level}").status_code == 200
        assert fleet.call("POST", "/wake_up").status_code == 200
        again, cached = cached_tokens(fleet, "a")
        assert again == said
        assert (cached > 100) is expected


def test_a_model_that_left_for_another_comes_back_with_its_prefixes(fleet):
    said, _ = cached_tokens(fleet, "a")
    other, cached = cached_tokens(fleet, "b")
    assert cached == 0  # nobody's but one's own
    assert other != said
    again, cached = cached_tokens(fleet, "a")
    assert (again, cached > 100) == (said, True)
