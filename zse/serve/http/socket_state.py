"""What the kernel knows of a connection's socket, and what it is told."""

from __future__ import annotations

import logging
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_TCP_NOTSENT_LOWAT = 25


def address_of(name: object) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None where it has none."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether the kernel has bytes, or the end, of what comes in, that nobody has read."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    unread = select.poll()  # ``select`` itself knows 1,024 descriptors
    unread.register(sock, select.POLLIN)
    return bool(unread.poll(0))


def bound_unsent(transport: asyncio.Transport, most_bytes: int, write_seconds: float) -> None:
    """Keep what nobody reads in this process, where it is seen and bounded.

    The kernel would take megabytes of an answer for a client that reads nothing.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, most_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(write_seconds * 1000))
    except OSError:
        logging.getLogger("zse.serve").debug("the kernel has no bound on unsent bytes")
