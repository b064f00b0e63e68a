from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from encrypted_server import encrypted_server
from object_ranges import opened, read_range
from range_server import serving

from zse.errors import RefusedError, StoreError, UsageError
from zse.settings import ProxySettings
from zse.store.http.pool import CertificateError, HttpPool

if TYPE_CHECKING:
    from pathlib import Path

    from range_server import Handler

DATA = b"0123456789"


def test_a_connection_that_the_server_closed_meanwhile_is_opened_anew() -> None:
    def answer_and_close(request: Handler) -> bool:
        request.close_connection = True
        first, last = request.wanted()
        where = {"Content-Range": f"bytes {first}-{last}/{len(DATA)}"}
        request.answer(206, DATA[first : last + 1], where)
        request.close_connection = True
        return True

    with serving("/a", DATA) as server:
        server.fault = answer_and_close
        source = opened(f"{server.url}/a")
        assert [read_range(source, at, 2) for at in (0, 4, 8)] == [b"01", b"45", b"89"]
        assert len(server.requests) == 4


def test_connections_are_kept_when_the_body_was_read_and_closed_otherwise() -> None:
    with serving("/a", DATA) as server:
        pool = HttpPool(ProxySettings())
        for count, connections in ((len(DATA), 1), (3, 1), (len(DATA), 2)):
            with pool.ask(f"{server.url}/a", {"Range": "bytes=0-9"}) as answer:
                assert answer.readinto(memoryview(bytearray(count))) == count
            assert server.num_connections == connections
        pool.close()


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "host:80", "http://host:port/"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not usable"), HttpPool(ProxySettings()).ask(url, {}):
        pass


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("http://example.com/a", RefusedError, "not encrypted"),
        ("file:///etc/passwd", RefusedError, "not encrypted"),
        ("ftp://example.com/a", RefusedError, "not encrypted"),
        ("http://169.254.169.254/latest/meta-data", RefusedError, "not encrypted"),
        ("https://169.254.169.254/latest/meta-data", RefusedError, "this machine itself"),
        ("http://[nobody/a", StoreError, "what is no address"),
        ("/a?again", StoreError, "redirects"),
    ],
)
def test_a_redirect_that_leads_astray_is_not_followed(
    target: str, error: type[Exception], words: str
) -> None:
    with serving("/a", DATA) as server:
        server.fault = lambda request: request.answer(302, headers={"Location": target}) is None
        ask = HttpPool(ProxySettings()).ask(f"{server.url}/a", {"Range": "bytes=0-9"})
        with pytest.raises(error, match=words), ask:
            pass


def test_a_redirect_to_nowhere_is_an_answer() -> None:
    with serving("/a", DATA) as server:
        server.fault = lambda request: request.answer(302) is None
        with HttpPool(ProxySettings()).ask(f"{server.url}/a", {"Range": "bytes=0-9"}) as answer:
            assert answer.status == 302
        assert len(server.requests) == 1


def test_the_internet_cannot_redirect_to_this_machine() -> None:
    from zse.store.http.pool import _check_redirect

    with pytest.raises(RefusedError, match="this machine"):
        _check_redirect(urlsplit("https://example.com/a"), urlsplit("http://127.0.0.1:8000/admin"))


def test_what_is_private_stays_with_the_server_that_was_asked() -> None:
    with serving("/a", DATA) as elsewhere, serving("/a", DATA) as server:
        target = {"Location": f"{elsewhere.url}/a"}
        server.fault = lambda request: request.answer(307, headers=target) is None
        pool, headers = HttpPool(ProxySettings()), {"Range": "bytes=0-9"}
        with pool.ask(f"{server.url}/a", headers, private={"Authorization": "key"}) as answer:
            assert answer.read() == DATA
        assert server.headers_seen[0]["authorization"] == "key"
        assert "authorization" not in elsewhere.headers_seen[0]
        for follow in ("home", "nowhere"):
            with pool.ask(f"{server.url}/a", headers, follow=follow) as answer:
                assert answer.status == 307


def test_a_certificate_that_is_not_trusted_is_an_error_at_once(tmp_path: Path) -> None:
    with encrypted_server(tmp_path) as (url, certificate):
        with (
            pytest.raises(CertificateError, match=r"localhost is not valid: self.signed"),
            HttpPool(ProxySettings()).ask(url, {}),
        ):
            pass
        with HttpPool(ProxySettings(), ca_bundle=str(certificate)).ask(url, {}) as answer:
            assert answer.read() == b"hello"
        with (
            pytest.raises(StoreError, match="certificates in /none cannot be read"),
            HttpPool(ProxySettings(), ca_bundle="/none").ask(url, {}),
        ):
            pass
