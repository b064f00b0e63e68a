"""Which requests go through a proxy, and what the proxy sees."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from encrypted_server import HOST, encrypted_server, proxy_to

from zse.errors import StoreError, UsageError
from zse.settings import ProxySettings
from zse.store.http.pool import HttpPool
from zse.store.http.proxy import is_link_local, proxy_for

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = ProxySettings(
    http_proxy="http://plain.example:81",
    https_proxy="user:p%40ss@proxy.example:3128",
    no_proxy="direct.example, .local,10.0.0.0/8,ported.example:8443,*.star.example",
)


@pytest.mark.parametrize(
    ("scheme", "host", "port", "proxy"),
    [
        ("https", "host.example", 443, "proxy.example"),
        ("http", "host.example", 80, "plain.example"),
        ("https", "direct.example", 443, None),
        ("https", "www.DIRECT.example", 443, None),
        ("https", "notdirect.example", 443, "proxy.example"),
        ("https", "a.local", 443, None),
        ("https", "10.1.2.3", 443, None),
        ("https", "11.1.2.3", 443, "proxy.example"),
        ("https", "ported.example", 8443, None),
        ("https", "ported.example", 443, "proxy.example"),
        ("https", "a.star.example", 443, None),
        ("http", "localhost", 80, None),
        ("http", "169.254.169.254", 80, None),
    ],
)
def test_a_proxy_is_used_where_no_proxy_does_not_name_the_server(
    scheme: str, host: str, port: int, proxy: str | None
) -> None:
    found = proxy_for(scheme, host, port, SETTINGS)
    assert (found.host if found else None) == proxy


def test_a_proxy_has_an_account_and_a_port() -> None:
    found = proxy_for("https", "host.example", 443, SETTINGS)
    assert found is not None
    assert (found.port, found.authorization) == (3128, "Basic dXNlcjpwQHNz")
    assert "Basic" not in repr(found)


def test_one_proxy_may_stand_for_all_and_a_star_for_none() -> None:
    everything = ProxySettings(all_proxy="http://all.example")
    found = proxy_for("https", "host.example", 443, everything)
    assert found is not None
    assert (found.host, found.port) == ("all.example", 80)
    none = ProxySettings(all_proxy="http://all.example", no_proxy="*")
    assert proxy_for("https", "host.example", 443, none) is None


@pytest.mark.parametrize("address", ["socks5://user:secret@host:1080", "http://:80", "http://h:x"])
def test_a_proxy_of_another_kind_is_an_error_that_shows_no_password(address: str) -> None:
    with pytest.raises(UsageError, match="is not usable") as caught:
        proxy_for("https", "host.example", 443, ProxySettings(https_proxy=address))
    assert "secret" not in caught.value.message
    assert "HTTPS_PROXY" in caught.value.hint


def test_what_a_cloud_tells_its_own_machines_is_link_local() -> None:
    assert is_link_local("169.254.170.2")
    assert is_link_local("FE80::1")
    assert not is_link_local("host.example")


def test_tls_goes_through_a_tunnel_and_the_proxy_sees_only_the_name(tmp_path: Path) -> None:
    with encrypted_server(tmp_path) as (url, certificate):
        port = urlsplit(url).port or 0
        with proxy_to(port, "Basic dXNlcjpwQHNz") as proxy:
            way = ProxySettings(https_proxy=f"http://user:p%40ss@127.0.0.1:{proxy.server_port}")
            pool = HttpPool(way, ca_bundle=str(certificate))
            for _ in range(2):
                with pool.ask(f"https://{HOST}/secret", {"Authorization": "key"}) as answer:
                    assert answer.read() == b"hello"
            assert proxy.requests == [f"CONNECT {HOST}:443"]
            pool.close()


def test_plain_http_is_relayed(tmp_path: Path) -> None:
    with proxy_to(0) as proxy:
        way = ProxySettings(http_proxy=f"http://127.0.0.1:{proxy.server_port}")
        with HttpPool(way).ask(f"http://{HOST}:9000/a?b=c", {}) as answer:
            assert answer.read() == b"hello"
        assert proxy.requests == [f"GET http://{HOST}:9000/a?b=c"]


def test_a_proxy_that_refuses_is_an_error_at_once() -> None:
    with proxy_to(0, "Basic other") as proxy:
        way = ProxySettings(https_proxy=f"http://127.0.0.1:{proxy.server_port}")
        with (
            pytest.raises(StoreError, match=r"answered 407 Who are you to CONNECT") as caught,
            HttpPool(way).ask(f"https://{HOST}/", {}),
        ):
            pass
    assert "NO_PROXY" in caught.value.hint
