"""Where nodes are looked for: a list, the pods of a Kubernetes service, or this network.

On a network a token of each says that it lives (``zse.stream.neighbours``). Its lease is short and
it can come back, unlike the verdicts of a cluster manager. Nothing of a model goes that way; and
whoever answers there still has to know the secret before anything is said to it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from zse.errors import UsageError
from zse.stream.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from zse.server_options import MeshOptions

_LOG = logging.getLogger("zse.mesh")
_LEAST_SECRET = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def secret_of(options: MeshOptions) -> bytes:
    """Return the mesh's secret.

    Raises:
        UsageError: There is none, or it is too short to be one.
    """
    secret = options.mesh_secret
    if len(secret) < _LEAST_SECRET:
        raise UsageError(
            f"the secret of the mesh has {len(secret)} characters; "
            f"expected {_LEAST_SECRET} or more",
            hint="Set ZSE_MESH_SECRET to the same text everywhere: openssl rand -hex 32.",
        )
    return secret.encode()


class Finder(NamedTuple):
    """Where nodes are."""

    addresses: Callable[[], Iterable[str]]
    """Of as many as are known by then."""
    has_tokens: bool = False
    """Whether an address that is no longer among them is a sign that its node is gone."""


@contextmanager
def finder_of(where: str, secret: bytes) -> Iterator[Finder]:
    """Yield what finds nodes, as long as it is asked.

    Raises:
        UsageError: ``where`` names none.
        MissingDependencyError: The network is to be asked, and Zenoh is not installed.
    """
    if where == "auto":
        with Discovery(secret) as discovery:
            yield Finder(discovery.addresses, has_tokens=True)
    elif where.startswith("scout:"):
        with Discovery(secret, join=[checked_address(where.removeprefix("scout:"))]) as discovery:
            yield Finder(discovery.addresses, has_tokens=True)
    elif where.startswith("k8s:"):
        service = checked_address(where.removeprefix("k8s:"))
        yield Finder(lambda: addresses_of_service(service))
    else:
        listed = [checked_address(one.strip()) for one in where.split(",") if one.strip()]
        yield Finder(lambda: listed)


def checked_address(address: str) -> str:
    """Return an address that has the form of one.

    Raises:
        UsageError: It has not.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise UsageError(f"{address!r} is no address of a node; expected HOST:PORT")
    return address


def checked_name(name: str) -> str:
    """Return the name of a node, which becomes part of a key.

    Raises:
        UsageError: It has other characters than letters, digits, dots, dashes and underscores.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a node: 1 to 64 letters, digits, dots, dashes, underscores"
        )
    return name


def addresses_of_service(service: str) -> list[str]:
    """Return the addresses of all pods behind a headless service, ``NAME:PORT``; it may be none."""
    host, _, port = service.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        _LOG.debug("%s has no pods yet: %s", host, error)
        return []
    hosts = sorted({str(entry[4][0]) for entry in found})
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


class Discovery(Neighbours):
    """Nodes of this mesh on this network; told when one comes or its token goes.

    Args:
        secret: Of the mesh. Other meshes of the network have other keys.
        own: Name and address of the node that is announced; None for who only looks.
        join: Addresses, HOST:PORT, of Zenoh peers where multicast does not reach.
        listen: Address that Zenoh listens at; empty: any.
    """

    def __init__(
        self,
        secret: bytes,
        own: tuple[str, str] | None = None,
        *,
        join: Iterable[str] = (),
        listen: str = "",
    ) -> None:
        if own is not None:
            checked_name(own[0])
        super().__init__(f"zse/mesh/{mesh_id(secret)}", own, join=join, listen=listen)


def mesh_id(secret: bytes) -> str:
    """Return what tells meshes of one network apart; the secret cannot be found from it."""
    return hmac.new(secret, b"zse mesh id", hashlib.sha256).hexdigest()[:16]
