"""What a boot does between the engine's start and the last weights."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from zse.serve.boot import ServerProcess
from zse.serve.held_requests import HeldRequests
from zse.serve.ledger import Ledger
from zse.serve.openai import protocol
from zse.serve.openai.protocol import ChatRequest, CompletionRequest, prepare_reading, read_request
from zse.serve.state import AppState
from zse.server_options import ServeOptions
from zse.settings import load_settings


class Model:
    """One that is there at once, and notes what it is told."""

    name = "model"

    def __init__(self):
        self.expected = []
        self.engine = SimpleNamespace(expect_request=self.expected.append)

    def settle(self):
        self.is_settled = True


@pytest.mark.parametrize(("waiting", "arriving", "prepares"), [
    (0, True, True), (1, True, False), (0, False, False),
])  # fmt: skip
def test_reading_is_prepared_while_weights_are_awaited_and_no_request(
    monkeypatch, waiting, arriving, prepares
):
    told = []
    monkeypatch.setattr(protocol, "prepare_reading", lambda: told.append(True))
    settings = replace(load_settings(), serve=ServeOptions(hold_seconds=20.0))
    state = AppState(ledger=Ledger(), options=settings.serve, settings=settings)
    held = SimpleNamespace(num_waiting=waiting, most_tokens=700, release=lambda: None)
    state._parts[HeldRequests] = held
    if arriving:
        state.ledger.watch("weights", lambda: (1, 2))
    model = Model()
    ServerProcess(state, settings, url="")._take_requests(model)
    assert model.is_settled
    assert told == [True] * prepares
    assert model.expected == [700] * waiting


def test_requests_are_read_the_same_when_reading_was_prepared():
    prepare_reading()
    prepare_reading()
    body, _ = read_request({"model": "m", "prompt": [1, 2]}, CompletionRequest)
    assert body.prompt == [1, 2]
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert read_request(chat, ChatRequest)[0].messages[0].content == "Hi"
