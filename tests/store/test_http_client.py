from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from range_server import serving

from zse.store import open_store
from zse.store.http_client import CertificateError, HttpClient

if TYPE_CHECKING:
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
        store = open_store(f"{server.url}/a")
        assert [store.read_range(at, 2) for at in (0, 4, 8)] == [b"01", b"45", b"89"]
        assert len(server.requests) == 4


def test_connections_are_kept_when_the_body_was_read_and_closed_otherwise() -> None:
    with serving("/a", DATA) as server:
        client = HttpClient()
        for count, kept in ((len(DATA), 1), (3, 0)):
            answer = client.open(f"{server.url}/a", {"Range": "bytes=0-9"})
            buffer = bytearray(count)
            assert answer.readinto(memoryview(buffer)) == count
            answer.close()
            assert sum(map(len, client._idle.values())) == kept


def test_a_proxy_of_the_environment_is_tunnelled_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@proxy.example:3128")
    monkeypatch.setenv("no_proxy", "direct.example")
    through = HttpClient()._connection(urlsplit("https://host.example/a"))
    assert (through.host, through.port) == ("proxy.example", 3128)
    assert through._tunnel_host == "host.example"  # type: ignore[attr-defined]
    headers = through._tunnel_headers  # type: ignore[attr-defined]
    assert headers["Proxy-Authorization"] == "Basic dXNlcjpwQHNz"
    for url in ("https://direct.example/a", "https://localhost/a"):
        direct = HttpClient()._connection(urlsplit(url))
        assert direct.host == urlsplit(url).hostname


def test_a_certificate_that_is_not_trusted_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Untrusted:
        sock = None

        def connect(self) -> None:
            asked.append("a handshake")
            error = ssl.SSLCertVerificationError(1, "bad")
            error.verify_message = "self-signed certificate"
            raise error

        def close(self) -> None:
            pass

    monkeypatch.setattr(HttpClient, "_connection", lambda _client, _parts: Untrusted())
    with pytest.raises(CertificateError, match=r"host\.example is not valid: self-signed"):
        open_store("https://host.example/a").size()
    assert asked == ["a handshake"]
