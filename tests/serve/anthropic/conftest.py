"""Callers of the Messages API."""

import pytest


@pytest.fixture
def ask(call):
    """Send a message and return the response."""

    def ask(text="say:Hello", **fields):
        body = {
            "model": "scripted",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": text}],
        }
        return call("POST", "/v1/messages", json={**body, **fields})

    return ask
