"""Replicas that find each other on a network, as nodes of a mesh do."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

from zse.errors import UsageError
from zse.stream.neighbours import Neighbours

_LOOK_SECONDS = 0.5
"""Until the first is known; a start without replicas waits as long."""
_MORE_SECONDS = 0.05
"""For others behind the first."""
_ELSEWHERE = "192.0.2.1", 9
"""An address for documentation: nothing is sent to it, it only says which of ours leads there."""
_ANY_HOSTS = frozenset({"", "0.0.0.0", "::"})


def is_network(where: str) -> bool:
    """Whether replicas are looked for on the network: ``auto`` or ``scout:HOST:PORT``."""
    return where == "auto" or where.startswith("scout:")


def replicas_on_network(where: str, secret: bytes) -> list[str]:
    """Return the addresses of replicas, http://HOST:PORT; it may be none.

    Raises:
        UsageError: ``where`` names no scout.
        MissingDependencyError: Zenoh is not installed.
    """
    with Neighbours(_group_of(secret), join=_joined(where)) as found:
        found.await_first(_LOOK_SECONDS)
        if found.addresses():
            time.sleep(_MORE_SECONDS)
        return [f"http://{address}" for address in found.addresses()]


def announced(where: str, secret: bytes, host: str, port: int) -> Neighbours:
    """Tell others of a replica that listens at a host and a port, until what is returned is closed.

    Raises:
        UsageError, MissingDependencyError: As ``replicas_on_network``.
    """
    own_host = _own_host() if host in _ANY_HOSTS else host
    address = f"[{own_host}]:{port}" if ":" in own_host else f"{own_host}:{port}"
    own = secrets.token_hex(8), address
    return Neighbours(_group_of(secret), own, join=_joined(where))


def _group_of(secret: bytes) -> str:
    """Return the key of those that know a secret; the secret cannot be found from it."""
    return f"zse/peers/{hmac.new(secret, b'zse peers id', hashlib.sha256).hexdigest()[:16]}"


def _joined(where: str) -> list[str]:
    if where == "auto":
        return []
    host, _, port = where.removeprefix("scout:").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"--peers-from {where!r} names no scout", hint="Write scout:HOST:PORT, or auto."
        )
    return [f"{host}:{port}"]


def _own_host() -> str:
    """Return this machine's address as others see it; the loopback's where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
