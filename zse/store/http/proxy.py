"""Which proxy a request goes through, if any: the rules of curl's variables."""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from zse.errors import UsageError
from zse.records import record
from zse.store.location import is_loopback

if TYPE_CHECKING:
    from zse.settings import ProxySettings

_LINK_LOCAL = ("169.254.", "fe80:", "fd00:ec2:")


@record
class Proxy:
    """An HTTP proxy."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)
    """Value of Proxy-Authorization; empty where it wants none."""


def is_link_local(host: str) -> bool:
    """Whether an address means what a cloud tells its own machines: roles, keys, metadata."""
    return host.lower().startswith(_LINK_LOCAL)


def proxy_for(scheme: str, host: str, port: int, settings: ProxySettings) -> Proxy | None:
    """Return the proxy for a server; None where it is asked directly.

    Raises:
        UsageError: The proxy's address is not usable.
    """
    text = settings.https_proxy if scheme == "https" else settings.http_proxy
    text = text or settings.all_proxy
    if not text or is_loopback(host) or is_link_local(host):
        return None
    if any(_matches(entry, host.lower(), port) for entry in settings.no_proxy.split(",")):
        return None
    return _parse(text)


def _parse(text: str) -> Proxy:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise UsageError(
            f"the proxy {parts.scheme}://{parts.netloc.rpartition('@')[2]} is not usable",
            hint="Set HTTPS_PROXY to http://[user:password@]host:port, or name hosts in NO_PROXY.",
        )
    authorization = ""
    if parts.username is not None:
        account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(account.encode()).decode()
    return Proxy(host=parts.hostname, port=port, authorization=authorization)


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY means a server: ``*``, a domain, an address or a network."""
    entry = entry.strip().lower()
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if entry.count(":") == 1:
        entry, _, wanted = entry.partition(":")
        if wanted != str(port):
            return False
    domain = entry.removeprefix("*").removeprefix(".")
    return bool(domain) and (host == domain or host.endswith("." + domain))
