"""The configuration: variables that nothing reads, keys, the address, certificates."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from zse.doctor.findings import Findings, fine, note, problem
from zse.errors import UsageError
from zse.serve.access.opening import key_file_of
from zse.serve.sockets import bind_socket, is_loopback
from zse.unread_variables import unread_variables

if TYPE_CHECKING:
    from zse.settings import Settings


def check_variables(settings: Settings) -> Findings:
    """Look for variables that are meant for zse and that nothing reads."""
    del settings
    unread = unread_variables()
    for one in unread:
        yield note("settings", f"nothing reads the variable {one.name}", one.hint)
    if not unread:
        yield fine("settings", "every ZSE_ variable is one that zse reads")


def check_address(settings: Settings) -> Findings:
    """Try the address that a server would listen on."""
    host, port = settings.serve.host, settings.serve.port
    try:
        bind_socket(host, port).close()
    except UsageError as error:
        yield note("address", error.message, error.hint or "Choose another with --host and --port.")
    else:
        yield fine("address", f"{host} port {port} is free")


def check_access(settings: Settings) -> Findings:
    """Look at who would be let in."""
    file, options, host = key_file_of(settings), settings.serve.access, settings.serve.host
    table = file.read()
    count = len(table.keys)
    if mounted := options.api_keys_file:
        path = Path(mounted)
        if not path.is_file():
            fix = "Mount the secret there, or leave --api-keys-file out."
            yield problem("access", f"the file of keys {path} is not there", fix)
            return
    given = bool(options.api_keys or options.api_keys_file)
    keys = f"{count} API keys in {file.path}" + (", and more are given" if given else "")
    if is_loopback(host) or count or given:
        yield fine("access", keys)
    elif options.public:
        found = f"{host} is reachable from other machines, and --public asks nobody for a key"
        yield note("access", found, "Make sure that a gate in front asks who comes.")
    else:
        fix = "A server makes one when it starts, and shows it once: zse api-key create NAME"
        yield note("access", f"{host} is reachable from other machines, and there is no key", fix)


def check_certificates(settings: Settings) -> Findings:
    """Look whether the files of TLS can be read, where there are any."""
    http = settings.serve.http
    for option, name in (
        ("--ssl-certfile", http.ssl_certfile),
        ("--ssl-keyfile", http.ssl_keyfile),
    ):
        if name and not Path(name).is_file():
            yield problem("tls", f"{option} {name} is not there", "Name a file in PEM form.")
        elif name:
            yield fine("tls", f"{option} {name}")


def check_names(settings: Settings) -> Findings:
    """Look whether this machine can find others by name, which models behind addresses need."""
    endpoint = settings.hub.endpoint.partition("//")[2].partition("/")[0].partition(":")[0]
    try:
        socket.getaddrinfo(endpoint, 443)
    except OSError as error:
        fix = "Models of the hub cannot be fetched; local files and s3:// may work all the same."
        yield note("network", f"{endpoint} cannot be resolved: {error.strerror}", fix)
    else:
        yield fine("network", f"{endpoint} is known")
