"""Two machines prove to each other that they know the mesh's secret, and agree on keys.

Each sends a number that nobody has used before; each answers with a keyed hash of both. The secret
never crosses the wire, and what was recorded once opens nothing later.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from typing import TYPE_CHECKING

import msgspec

from zse.errors import MeshError, RefusedError
from zse.mesh.frames import Signer
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

_GREETING = struct.Struct("<4sBH")
_MAGIC = b"zseM"
_VERSION = 1
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_MOST_INTRODUCTION_BYTES = 4096
HANDSHAKE_SECONDS = 5.0


class Introduction(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Who a side says it is; believed once its proof is right."""

    node: str
    """Its name; empty for a front end."""
    purpose: str
    """``front``, ``rows``, ``blocks`` or ``look``."""
    version: str = ""
    """Of zse."""


@record
class Channel:
    """A connection whose ends know each other."""

    socket: socket.socket
    peer: Introduction
    sends: Signer
    receives: Signer


def shake_hands(
    connection: socket.socket,
    secret: bytes,
    own: Introduction,
    *,
    is_caller: bool,
    seconds: float = HANDSHAKE_SECONDS,
) -> Channel:
    """Return the channel of a fresh connection.

    Raises:
        RefusedError: The peer does not know the secret.
        MeshError: It speaks something else, or too slowly.
    """
    deadline = time.monotonic() + seconds
    nonce = secrets.token_bytes(_NONCE_BYTES)
    introduction = msgspec.msgpack.encode(own)
    mine = _GREETING.pack(_MAGIC, _VERSION, len(introduction)) + nonce + introduction
    try:
        connection.settimeout(seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(mine)
        theirs = _greeting(connection, deadline)
        both = (mine + theirs) if is_caller else (theirs + mine)
        transcript = hashlib.sha256(both).digest()
        names = (b"caller", b"listener") if is_caller else (b"listener", b"caller")
        connection.sendall(_keyed(secret, b"proof " + names[0], transcript))
        proof = _receive(connection, _PROOF_BYTES, deadline)
    except OSError as error:
        raise MeshError(f"a peer went away during the handshake: {error}") from error
    if not hmac.compare_digest(proof, _keyed(secret, b"proof " + names[1], transcript)):
        raise RefusedError(
            "a peer does not know the secret of this mesh",
            hint="Give all nodes, and the front end, the same ZSE_MESH_SECRET.",
        )
    connection.settimeout(None)
    return Channel(
        socket=connection,
        peer=_introduction(theirs[_GREETING.size + _NONCE_BYTES :]),
        sends=Signer(_keyed(secret, b"key " + names[0], transcript)),
        receives=Signer(_keyed(secret, b"key " + names[1], transcript)),
    )


def _greeting(connection: socket.socket, deadline: float) -> bytes:
    start = _receive(connection, _GREETING.size + _NONCE_BYTES, deadline)
    magic, version, length = _GREETING.unpack(start[: _GREETING.size])
    if magic != _MAGIC or version != _VERSION or length > _MOST_INTRODUCTION_BYTES:
        raise MeshError(
            f"a peer greets with {magic!r} version {version}; expected {_MAGIC!r} {_VERSION}"
        )
    return start + _receive(connection, length, deadline)


def _introduction(data: bytes) -> Introduction:
    try:
        return msgspec.msgpack.decode(data, type=Introduction)
    except msgspec.MsgspecError as error:
        raise MeshError(f"a peer introduces itself in a form that is not known: {error}") from None


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise MeshError("a peer took too long to introduce itself")
        connection.settimeout(left)
        piece = connection.recv(count - len(data))
        if not piece:
            raise MeshError("a peer hung up during the handshake")
        data += piece
    return data


def _keyed(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, b"zse mesh " + label + transcript, hashlib.sha256).digest()


def caller_of(secret: bytes, own: Introduction) -> Callable[[str, float], Channel]:
    """Return what calls an address, ``HOST:PORT``, within some seconds."""

    def call(address: str, seconds: float) -> Channel:
        host, _, port = address.rpartition(":")
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
        except (OSError, ValueError) as error:
            raise MeshError(f"{address} cannot be reached: {error}") from error
        try:
            return shake_hands(connection, secret, own, is_caller=True, seconds=seconds)
        except BaseException:
            connection.close()
            raise

    return call
