"""How a start is asked."""

import itertools

import pytest

from zse.deploy.measure.asking import dialogue_of


def test_a_short_question_is_a_chat_once_the_server_is_ready():
    found = dialogue_of()
    assert found.path == "/v1/chat/completions"
    assert found.asks == "ready"
    assert dialogue_of(is_at_once=True).asks == "at-once"


@pytest.mark.parametrize("count", [1, 31, 2048])
def test_a_prompt_has_the_length_that_was_asked_for_of_ids_that_every_model_knows(count):
    found = dialogue_of(prompt_tokens=count, is_at_once=True)
    ids = found.question["prompt"]
    assert len(ids) == count
    assert 0 <= min(ids) <= max(ids) < 256
    assert all(one != other for one, other in itertools.pairwise(ids))
    assert found.asks == "at-once"
    assert found.brings_text({"choices": [{"text": ""}]})
