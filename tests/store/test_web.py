"""``https://`` (plain http on loopback) against a server of ranges that misbehaves when told to."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest
from object_ranges import opened, read_range
from range_server import serving

from zse.errors import NotFoundError, StoreError, UsageError
from zse.settings import load_settings
from zse.store import fetch, open_store, put_file
from zse.store.base import CHUNK_BYTES
from zse.store.http.retry import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from range_server import Handler, RangeServer

DATA = bytes(range(256)) * 4096
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with serving("/folder/file.zse?key=secret", DATA) as running:
        yield running


@pytest.fixture
def url(server: RangeServer) -> str:
    return f"{server.url}/folder/file.zse?key=secret"


def test_a_file_is_fetched_in_ranges_of_one_version(
    url: str, server: RangeServer, tmp_path: Path
) -> None:
    transfer = fetch(url, tmp_path / "a", load_settings())
    assert (tmp_path / "a").read_bytes() == DATA
    assert not transfer.verified
    assert server.requests == ["bytes=0-0", f"bytes=0-{len(DATA) - 1}"]
    assert server.headers_seen[1]["if-match"] == '"first"'


def test_a_large_file_is_read_in_parallel_and_comes_in_order(tmp_path: Path) -> None:
    data = DATA * 24
    with serving("/a", data) as server:
        fetch(f"{server.url}/a", tmp_path / "a", load_settings())
        assert len(server.requests) == 1 + -(-len(data) // CHUNK_BYTES)
    assert hashlib.sha256((tmp_path / "a").read_bytes()).digest() == hashlib.sha256(data).digest()


def test_an_empty_file_is_fetched(tmp_path: Path) -> None:
    with serving("/a", b"") as server:
        server.fault = lambda request: (
            request.answer(416, headers={"Content-Range": "bytes */0"}) is None
        )
        assert fetch(f"{server.url}/a", tmp_path / "a", load_settings()).size_bytes == 0
    assert (tmp_path / "a").read_bytes() == b""


def told(server: RangeServer, **headers: str) -> None:
    """Let every answer carry more headers."""

    def fault(request: Handler) -> bool:
        first, last = request.wanted()
        where = {"Content-Range": f"bytes {first}-{last}/{len(DATA)}"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request.answer(206, DATA[first : last + 1], {**where, **named})
        return True

    server.fault = fault


def test_a_digest_that_the_server_tells_is_checked(
    url: str, server: RangeServer, tmp_path: Path
) -> None:
    good = hashlib.sha256(DATA)
    told(server, Repr_Digest=f"md5=:AAAA:, sha-256=:{base64.b64encode(good.digest()).decode()}:")
    assert fetch(url, tmp_path / "a", load_settings()).verified
    told(server, X_Amz_Meta_Zse_Sha256=good.hexdigest())
    assert fetch(url, tmp_path / "a", load_settings()).verified
    told(server, X_Amz_Meta_Zse_Sha256="0" * 64)
    with pytest.raises(StoreError, match="does not hold what was stored"):
        fetch(url, tmp_path / "b", load_settings())
    told(server, Repr_Digest="sha-256=:???:")
    assert not fetch(url, tmp_path / "b", load_settings()).verified


def test_a_digest_that_the_caller_knows_is_checked(url: str, tmp_path: Path) -> None:
    assert fetch(
        url, tmp_path / "a", load_settings(), sha256=hashlib.sha256(DATA).hexdigest()
    ).verified
    with pytest.raises(StoreError, match=r"expected .* sha256 0000"):
        fetch(url, tmp_path / "b", load_settings(), sha256="0" * 64)
    assert not (tmp_path / "b").exists()


def test_a_file_replaced_during_the_copy_is_an_error(url: str, server: RangeServer) -> None:
    source = opened(url)
    assert source.facts.version == '"first"'
    server.etag = '"second"'
    with pytest.raises(StoreError, match="was replaced"):
        read_range(source, 0, 4)


def test_without_a_strong_tag_the_date_holds_the_version(url: str, server: RangeServer) -> None:
    date = "Fri, 02 Jan 2026 03:04:05 GMT"
    told(server, ETag='W/"x"', Last_Modified=date)
    assert read_range(url, 0, 4) == DATA[:4]
    assert server.headers_seen[-1]["if-unmodified-since"] == date
    assert "if-match" not in server.headers_seen[-1]


def test_a_busy_server_is_asked_again_after_the_time_it_names(
    url: str, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    left = [1, 2]

    def busy(request: Handler) -> bool:
        if not left:
            return False
        request.answer(503 if left.pop() == 2 else 429, headers={"Retry-After": "3"})
        return True

    server.fault = busy
    assert read_range(url, 0, 4) == DATA[:4]
    assert sum(waited) == pytest.approx(6.0)


def test_a_server_that_stays_busy_is_an_error(url: str, server: RangeServer) -> None:
    server.fault = lambda request: request.answer(500) is None
    with pytest.raises(StoreError, match=f"{ATTEMPTS} attempts failed.*500"):
        open_store(url, load_settings()).size()
    assert len(server.requests) == ATTEMPTS


def test_a_cut_connection_goes_on_where_it_stopped(url: str, server: RangeServer) -> None:
    source = opened(url)
    left = [1, 1]

    def cut(request: Handler) -> bool:
        if left:
            left.pop()
            request.answer_cut(100)
            return True
        return False

    server.fault = cut
    assert read_range(source, 1000, 5000) == DATA[1000:6000]
    assert server.requests[1:] == ["bytes=1000-5999", "bytes=1100-5999", "bytes=1200-5999"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {}), "does not honour|answered 200 .* to a range"),
        ((206, {}), "Content-Range ''"),
        ((206, {"Content-Range": f"bytes 5-9/{len(DATA)}"}), "Content-Range 'bytes 5-9"),
        ((403, {}), "answered 403"),
    ],
)
def test_an_answer_that_is_not_the_range_is_refused(
    url: str, server: RangeServer, answer: tuple[int, dict[str, str]], words: str
) -> None:
    source = opened(url) if "5-9" in words else url
    server.fault = lambda request: request.answer(answer[0], b"x", answer[1]) is None
    with pytest.raises(StoreError, match=words):
        read_range(source, 0, 4)


def test_messages_never_show_the_query_of_a_signed_address(url: str, server: RangeServer) -> None:
    server.fault = lambda request: request.answer(404) is None
    with pytest.raises(NotFoundError) as caught:
        open_store(url, load_settings()).size()
    assert "secret" not in caught.value.message + caught.value.hint
    assert "file.zse?..." in caught.value.message
    assert not open_store(url, load_settings()).exists()


def test_the_web_is_read_only(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can be read, not written"):
        put_file(tmp_path, url, load_settings())
    assert [entry.size_bytes for entry in open_store(url, load_settings()).list()] == [len(DATA)]
