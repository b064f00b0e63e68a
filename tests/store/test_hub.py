"""``hf://`` against a server that answers as the hub does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fake_hub import COMMIT, FILES, LARGE, TOKEN
from object_ranges import opened, read_range

from zse.errors import NotFoundError, RefusedError, StoreError, UsageError
from zse.settings import load_settings
from zse.store import fetch, open_store, open_writable

if TYPE_CHECKING:
    from pathlib import Path

    from fake_hub import FakeHub

URL = "hf://owner/name/models/model.zse"
pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_large_file_is_read_where_it_lies_and_checked(hub: FakeHub, tmp_path: Path) -> None:
    transfer = fetch(URL, tmp_path / "a", load_settings())
    assert (tmp_path / "a").read_bytes() == LARGE
    assert transfer.verified
    heads = [line for line in hub.requests if line.startswith("HEAD")]
    assert heads == ["HEAD /owner/name/resolve/main/models/model.zse"]


def test_a_branch_is_read_at_the_commit_that_it_was_at_first(hub: FakeHub) -> None:
    assert read_range("hf://owner/name@v1/models/model.zse", 10, 5) == LARGE[10:15]
    assert [line for line in hub.requests if line.startswith("GET")] == [
        f"GET /owner/name/resolve/{COMMIT}/models/model.zse"
    ]


def test_a_small_file_is_checked_against_gits_digest(hub: FakeHub, tmp_path: Path) -> None:
    assert fetch("hf://owner/name/config.json", tmp_path / "a", load_settings()).verified
    assert fetch("hf://owner/name/models/näme 1.txt", tmp_path / "b", load_settings()).verified
    assert (tmp_path / "b").read_bytes() == FILES["models/näme 1.txt"]


def test_damaged_bytes_are_not_published(hub: FakeHub, tmp_path: Path) -> None:
    hub.damaged = True
    with pytest.raises(StoreError, match="does not hold what was stored"):
        fetch(URL, tmp_path / "a", load_settings())
    assert list(tmp_path.iterdir()) == []


def test_the_token_goes_to_the_hub_and_to_nobody_else(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = "hf://owner/gated/models/model.zse"
    with pytest.raises(StoreError, match="is gated") as caught:
        fetch(gated, tmp_path / "a", load_settings())
    assert "HF_TOKEN" in caught.value.hint
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    source = opened(gated)
    assert read_range(source, 0, 4) == LARGE[:4]
    assert read_range(source, 4, 4) == LARGE[4:8]  # straight from where the redirect led
    assert hub.leaked_tokens == []


def test_a_saved_token_is_used(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    assert open_store("hf://owner/gated/config.json", load_settings()).size() == len(
        FILES["config.json"]
    )


def test_an_address_that_expires_during_the_copy_is_asked_for_again(hub: FakeHub) -> None:
    source = opened(URL)
    assert read_range(source, 0, 4) == LARGE[:4]
    hub.signature = 2
    assert read_range(source, 4, 4) == LARGE[4:8]
    assert read_range(source, 8, 4) == LARGE[8:12]
    resolved = [line for line in hub.requests if line.startswith("GET")]
    assert len(resolved) == 2


def test_a_repository_that_was_renamed_is_found(hub: FakeHub) -> None:
    assert read_range("hf://old/name/models/model.zse", 0, 3) == LARGE[:3]


@pytest.mark.parametrize(
    ("url", "words", "hint"),
    [
        ("hf://owner/absent/a", "does not exist on the hub", "HF_TOKEN"),
        ("hf://owner/name/absent", "owner/name/absent does not exist", "zse ls hf://owner/name"),
        ("hf://owner/name@v9/config.json", "no revision 'v9'", "branch"),
    ],
)
def test_what_is_not_there_is_not_found(hub: FakeHub, url: str, words: str, hint: str) -> None:
    store = open_store(url, load_settings())
    with pytest.raises(NotFoundError, match=words) as caught:
        store.size()
    assert hint in caught.value.hint
    assert not store.exists()


def test_a_listing_has_every_page_sorted(hub: FakeHub) -> None:
    entries = [
        (str(e.location), e.size_bytes)
        for e in open_store("hf://owner/name", load_settings()).list()
    ]
    assert entries == sorted((f"hf://owner/name/{name}", len(data)) for name, data in FILES.items())
    below = [e.location.key for e in open_store("hf://owner/name/models", load_settings()).list()]
    assert below == ["models/model.zse", "models/näme 1.txt"]
    with pytest.raises(NotFoundError, match="no revision"):
        list(open_store("hf://owner/name@v9", load_settings()).list())


def test_a_listing_that_never_ends_is_given_up(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.store.hub._MAX_PAGES", 1)
    with pytest.raises(StoreError, match="more than 1 pages") as caught:
        list(open_store("hf://owner/name", load_settings()).list())
    assert "Name one file" in caught.value.hint
    assert len(hub.requests) == 1


def test_a_hub_is_read_only_and_a_repository_is_no_file(hub: FakeHub) -> None:
    with pytest.raises(UsageError, match="can be read, not written"):
        open_writable(URL, load_settings())
    with pytest.raises(UsageError, match="names a folder"):
        open_store("hf://owner/name", load_settings()).size()


def test_a_server_that_is_no_hub_is_told_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from range_server import serving

    with serving("/owner/name/resolve/main/a", b"data") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(StoreError, match="not a hub's") as caught:
            open_store("hf://owner/name/a", load_settings()).size()
    assert "HF_ENDPOINT" in caught.value.hint


def test_an_endpoint_that_is_not_encrypted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example.com")
    with pytest.raises(RefusedError, match="not encrypted"):
        open_store(URL, load_settings())
