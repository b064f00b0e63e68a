"""The listening socket, bound before the rest of the server is imported."""

from __future__ import annotations

import errno
import ipaddress
import socket

from zse.errors import UsageError

BACKLOG = 2048


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        UsageError: The address is unknown, or the port is taken or forbidden.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            # A text goes through the codec of international names, whose tables take a while.
            host.encode() if host.isascii() else host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
    except (socket.gaierror, UnicodeError) as error:  # the latter: no name of a host is like this
        reason = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise UsageError(f"host {host!r} cannot be resolved: {reason}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            hint="Name an address of this machine with --host: 127.0.0.1, or 0.0.0.0 for all."
            if error.errno == errno.EADDRNOTAVAIL
            else "Choose another port with --port; 0 takes a free one.",
        ) from None
    return listener


def url_of(host: str, port: int, *, is_secure: bool = False) -> str:
    """Return an address that reaches a bound socket from this machine."""
    scheme = "https" if is_secure else "http"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{scheme}://{host}:{port}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"{scheme}://[{host}]:{port}" if address.version == 6 else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
