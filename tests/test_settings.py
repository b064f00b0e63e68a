from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from zse.errors import BadSettingError
from zse.option import options_of
from zse.server_options import ServeOptions
from zse.settings import Settings, load_settings


def test_a_user_without_a_home_keeps_nothing_in_the_folder_at_hand(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as where no user is known
    assert load_settings({}).home == Path("/.zse")


def test_an_empty_environment_gives_the_defaults() -> None:
    assert load_settings({}).serve == ServeOptions()


def test_every_setting_has_one_name_and_says_what_it_is() -> None:
    rows = options_of(Settings)
    variables = [name for row in rows.values() for name in row.variables]
    assert len(variables) == len(set(variables))
    assert len(rows) > 50
    assert all(row.help for row in rows.values())


def test_a_platforms_port_wins_over_ours() -> None:
    assert load_settings({"PORT": "8080", "ZSE_PORT": "9000"}).serve.port == 8080


def test_the_standard_variables_of_object_stores_and_registries_are_read() -> None:
    settings = load_settings({"AWS_ENDPOINT_URL": "http://a", "DOCKER_CONFIG": "/cfg"})
    assert settings.aws.endpoint_url == "http://a"
    assert settings.registry_auth_file == Path("/cfg/config.json")
    both = {"AWS_ENDPOINT_URL": "x", "AWS_ENDPOINT_URL_S3": "y"}
    assert load_settings(both).aws.endpoint_url == "y"


def test_keys_are_read_and_never_shown() -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret", "RUNPOD_API_KEY": "s3cret"}
    settings = load_settings(secrets)
    assert settings.aws.secret_access_key == settings.hub.token == settings.runpod_api_key
    assert "s3cret" not in repr(settings)


def test_the_cache_follows_the_xdg_rule() -> None:
    assert load_settings({"XDG_CACHE_HOME": "/c"}).cache_dir == Path("/c/zse")
    assert load_settings({"ZSE_CACHE_DIR": "/mine"}).cache_dir == Path("/mine")


def test_the_hubs_token_is_where_its_own_tools_keep_it() -> None:
    assert load_settings({"XDG_CACHE_HOME": "/c"}).hub.token_path == Path("/c/huggingface/token")
    assert load_settings({"HF_HOME": "/h"}).hub.token_path == Path("/h/token")
    assert load_settings({"HF_HOME": "/h", "HF_TOKEN_PATH": "/t"}).hub.token_path == Path("/t")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PORT", "http", "a whole number"),
        ("PORT", "70000", "0 to 65535"),
        ("ZSE_KV_GIB", "much", "a number"),
        ("ZSE_THREADS", "-1", "0 to 1024"),
        ("ZSE_DRAIN_SECONDS", "nan", "0 or more"),
        ("ZSE_KV_DTYPE", "int3", "one of auto, fp32, fp16, bf16, int8"),
        ("ZSE_EXACT_ACTIVATIONS", "perhaps", "a yes or a no"),
    ],
)
def test_a_malformed_value_names_the_variable_the_value_and_what_is_expected(
    name: str, value: str, expected: str
) -> None:
    with pytest.raises(BadSettingError, match=name) as caught:
        load_settings({name: value})
    assert value in caught.value.message
    assert expected in caught.value.message
    assert caught.value.hint


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().debug = True  # type: ignore[misc]


def test_a_variable_holds_several_texts_with_commas() -> None:
    settings = load_settings({"ZSE_CORS_ORIGIN": "https://a.example, https://b.example"})
    assert settings.serve.http.cors_origins == ("https://a.example", "https://b.example")
