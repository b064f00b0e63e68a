"""What a server refuses when nodes of a mesh compute, before anything is opened."""

from __future__ import annotations

import pytest

from zse.errors import UsageError
from zse.option import with_flags
from zse.serve.meshed import with_mesh
from zse.settings import load_settings


def settings_of(monkeypatch, **flags):
    monkeypatch.setenv("ZSE_MESH_SECRET", "a secret of sixteen")
    return with_flags(load_settings(), {"mesh": "127.0.0.1:7700", **flags})


def test_the_front_computes_nothing_itself(monkeypatch):
    assert with_mesh(settings_of(monkeypatch)).serve.load.device.name == "cpu"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"models": ["a=tiny"]}, "--models"),
        ({"sleep_after": 5.0}, "--sleep-after"),
        ({"lora": ["a=b"]}, "--lora"),
        ({"speculate": "model", "draft_model": "tiny"}, "--speculate model"),
        ({"draft_model": "tiny"}, "--draft-model"),
        ({"prefix_store": "folder"}, "--prefix-store"),
        ({"prefix_host_gib": 1.0}, "--prefix-host-gib"),
    ],
)
def test_what_a_mesh_does_not_do_is_refused_by_name(monkeypatch, flags, named):
    with pytest.raises(UsageError, match=f"{named} and --mesh do not go together"):
        with_mesh(settings_of(monkeypatch, **flags))


def test_a_secret_that_is_none_is_refused_at_once(monkeypatch):
    settings = settings_of(monkeypatch)
    short = with_flags(settings, {"mesh_secret": "short"})
    with pytest.raises(UsageError, match="expected 16 or more"):
        with_mesh(short)
