"""The command line of the server, without a server."""

import pytest

import zse.serve.boot
from zse.serve.__main__ import main


@pytest.fixture
def options_of(monkeypatch):
    """Return the options that a command line starts the server with."""
    seen = []
    monkeypatch.setattr(
        zse.serve.boot, "serve", lambda listener, options: seen.append(options) or 0
    )

    def start(*arguments: str):
        assert main([*arguments, "--port", "0"]) == 0
        return seen[-1]

    return start


def test_the_word_that_sagemaker_adds_is_no_model_and_makes_loading_unhealthy(options_of):
    options = options_of("serve", "my.zse")
    assert (options.model, options.loading_ping_status) == ("my.zse", 503)


def test_without_that_word_loading_is_204(options_of):
    assert options_of("my.zse").loading_ping_status == 204
