from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from zse.errors import BadSettingError
from zse.settings import Settings, load_settings


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 8000, "tiny")


def test_a_platforms_port_wins_over_ours() -> None:
    assert load_settings({"PORT": "8080", "ZSE_PORT": "9000"}).port == 8080


def test_the_standard_variables_of_object_stores_and_registries_are_read() -> None:
    settings = load_settings({"AWS_ENDPOINT_URL": "http://a", "DOCKER_CONFIG": "/cfg"})
    assert settings.s3_endpoint_url == "http://a"
    assert settings.registry_auth_file == "/cfg/config.json"
    assert (
        load_settings({"AWS_ENDPOINT_URL": "x", "AWS_ENDPOINT_URL_S3": "y"}).s3_endpoint_url == "y"
    )


def test_the_cache_follows_the_xdg_rule() -> None:
    assert load_settings({"XDG_CACHE_HOME": "/c"}).cache_dir == Path("/c/zse")
    assert load_settings({"ZSE_CACHE_DIR": "/mine"}).cache_dir == Path("/mine")


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "http"), ("ZSE_KV_GIB", "much"), ("ZSE_THREADS", "-1"), ("ZSE_DRAIN_SECONDS", "nan")],
)
def test_a_malformed_value_names_the_variable_and_the_value(name: str, value: str) -> None:
    with pytest.raises(BadSettingError, match=name) as caught:
        load_settings({name: value})
    assert value in caught.value.message
    assert caught.value.hint


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]
