"""Callers of the Responses API."""

import pytest


@pytest.fixture
def ask(call):
    """Send input and return the response."""

    def ask(given="say:Hello", headers=None, **fields):
        body = {"model": "scripted", "input": given, **fields}
        return call("POST", "/v1/responses", json=body, headers=headers)

    return ask
