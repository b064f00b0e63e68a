"""Where a replica is: an address as people write it, and the names that stand for several."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.route_options import RouteOptions

MAX_REPLICAS = 1024
"""Of one router: each is asked how it is each second."""
_LABEL = r"[A-Za-z0-9_-]{1,63}"
"""Of a name (RFC 1035, 2.3.4): Python looks up no name with a longer or an empty one."""
_FORM = re.compile(
    rf"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::([0-9]{{1,5}}))?/?"
)
_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
_MAX_FILE_BYTES = 1 << 20


@record
class Address:
    """Where to connect."""

    scheme: str
    host: str
    """Without brackets."""
    port: int

    @property
    def netloc(self) -> str:
        """Host and port, as the header Host has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def name(self) -> str:
        return f"{self.scheme}://{self.netloc}"


def read_address(text: str) -> Address:
    """Read ``http://HOST:PORT``, or ``HOST:PORT``.

    Raises:
        UsageError: It is none.
    """
    found = _FORM.fullmatch(text.strip())
    scheme, host, port = found.groups() if found else (None, None, None)
    number = int(port) if port else _PORTS[scheme or "http"]
    if host is None or not 0 < number <= _MAX_PORT:
        raise UsageError(
            f"{text[:100]!r} is no address of a replica",
            hint="For example http://10.0.0.11:8000; a path does not belong to it.",
        )
    return Address(scheme=scheme or "http", host=host.strip("[]"), port=number)


def sources_of(options: RouteOptions) -> list[Callable[[], Iterable[Address]]]:
    """Return what names replicas; each is asked again and again, in a thread.

    Raises:
        UsageError: Nothing names any, or something that is none.
    """
    given = [read_address(text) for text in options.replicas]
    sources: list[Callable[[], Iterable[Address]]] = []
    if given:
        sources.append(lambda: given)
    if options.replicas_file:
        path = Path(options.replicas_file)
        read_file(path)  # what is wrong with it is said at the start
        sources.append(lambda: read_file(path))
    if options.replicas_from:
        read_address(options.replicas_from)
        sources.append(lambda: resolve(options.replicas_from))
    if not sources:
        raise UsageError(
            "no replicas are named",
            hint="Give --replica http://HOST:PORT for each, --replicas-file or --replicas-from.",
        )
    return sources


def read_file(path: Path) -> list[Address]:
    """Read addresses, one on a line; what is behind # is for people.

    Raises:
        UsageError: It cannot be read, or names something that is no address.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the file of replicas cannot be read: {error}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"the file of replicas is larger than {_MAX_FILE_BYTES >> 20} MiB")
    lines = (line.partition("#")[0].strip() for line in data.decode(errors="replace").splitlines())
    return [read_address(line) for line in lines if line]


def resolve(text: str) -> list[Address]:
    """Return all addresses of a name; none where it has none now, as of a service without pods.

    Raises:
        UsageError: As ``read_address``.
        OSError: Nobody could be asked.
    """
    named = read_address(text)
    try:
        found = socket.getaddrinfo(named.host, named.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [Address(scheme=named.scheme, host=host, port=named.port) for host in hosts]


async def look_up(source: Callable[[], Iterable[Address]]) -> list[Address]:
    """Ask one source, in a thread: files and names may take their time."""
    return list(await asyncio.to_thread(source))
