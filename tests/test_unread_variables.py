from __future__ import annotations

import logging
import os

import pytest

from zse.errors import BadSettingError
from zse.unread_variables import refuse_lost_guards, unread_variables, warn_of_unread


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ZSE_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ZSE_APIKEY", "ZSE_API_KEY"),
        ("ZSE_API_TOKEN", "ZSE_API_KEY"),
        ("ZSE_KEYS", "ZSE_API_KEYS"),
        ("ZSE_API_KEY_FILE", "ZSE_API_KEYS_FILE"),
        ("ZSE_ROUTER_KEY", "ZSE_ROUTE_KEY"),
        ("ZSE_MESH_SECRETS", "ZSE_MESH_SECRET"),
        ("ZSE_SSL_CERT_FILE", "ZSE_SSL_CERTFILE"),
    ],
)
def test_a_misspelt_key_ends_the_start_with_the_name_that_was_meant(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hush")
    with pytest.raises(BadSettingError, match=f"variable {name},") as refused:
        refuse_lost_guards()
    assert refused.value.hint == f"Did you mean {meant}? Rename it or unset it."
    assert "hush" not in str(refused.value) + refused.value.hint


def test_another_typing_error_is_said_in_the_log_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZSE_MAX_CONTEX", "4096")
    monkeypatch.setenv("ZSE_SOMETHING_OF_MINE", "1")
    refuse_lost_guards()
    with caplog.at_level(logging.WARNING, "zse.test"):
        warn_of_unread(logging.getLogger("zse.test"))
    told = {line.getMessage(): getattr(line, "hint", "") for line in caplog.records}
    assert told["nothing reads the variable ZSE_MAX_CONTEX"] == "Did you mean ZSE_MAX_CONTEXT?"
    assert "zse config show" in told["nothing reads the variable ZSE_SOMETHING_OF_MINE"]


@pytest.mark.parametrize(
    "name",
    [
        "ZSE_API_KEYS",
        "ZSE_API_KEY",
        "ZSE_MAX_CONTEXT",
        "ZSE_REQUIRE_GPU",
        "ZSE_SERVICE_HOST",
        "ZSE_SERVICE_PORT_HTTP",
        "ZSE_7B_PORT",
        "ZSE_PORT_8000_TCP_ADDR",
    ],
)
def test_what_zse_its_tests_or_kubernetes_mean_is_no_typing_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert unread_variables() == ()


def test_names_that_are_given_are_looked_at_and_not_those_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZSE_APIKEY", "hush")
    (one,) = unread_variables(["ZSE_PUBLIK", "PATH", "ZSE_PUBLIC"])
    assert (one.name, one.meant, one.is_guard) == ("ZSE_PUBLIK", "ZSE_PUBLIC", False)
    refuse_lost_guards(["ZSE_PUBLIK"])
