"""What replicas of one host say to each other before one copies out of the other's GPU memory.

    lender                     borrower
    challenge          ->
                       <-      its own challenge, and a proof of both
    proof, the offer   ->      with a descriptor of the memory
    (nothing)                  copies; the connection is the lease, and its end is the lease's

It goes over a Unix socket without a file: its name follows from the replicas' secret, so that no
other user can stand there, and the kernel says whose process is at the other end.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from hashlib import sha256
from typing import TYPE_CHECKING

from zse.errors import RefusedError
from zse.records import record
from zse.stream.peers.proof import is_equal, mac

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_LENDERS = 16
"""Of one secret on one host: a socket's name is one of so many."""
HANDSHAKE_SECONDS = 2.0
MOST_OFFER_BYTES = 128 << 10
"""A kernel's sockets take messages of 200 KB."""
_PROOF_BYTES = 64
_MOST_BYTES = 1 << 48
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of who is at the other end."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class LoanRefusedError(RefusedError):
    """The other side of a loan is not who it has to be, or says what cannot be."""


@record
class Offer:
    """What a lender has."""

    host: str
    """See ``host_identity``."""
    length_bytes: int
    """Of the memory, as its maker asked for it."""
    places: Mapping[str, tuple[int, int]]
    """Where bytes lie in it, by their SHA-256: offset and length."""

    def to_bytes(self) -> bytes:
        rows = [[digest, *place] for digest, place in self.places.items()]
        told = {"host": self.host, "length": self.length_bytes, "groups": rows}
        return json.dumps(told, separators=(",", ":")).encode()


def read_offer(body: bytes) -> Offer:
    """Return what a lender says that it has.

    Raises:
        LoanRefusedError: That cannot be.
    """
    try:
        told = json.loads(body)
        host, length, rows = told["host"], told["length"], told["groups"]
        is_good = isinstance(host, str) and _is_size(length, _MOST_BYTES)
        places = {digest: (offset, count) for digest, offset, count in rows}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LoanRefusedError("a replica on this host offers what cannot be read") from None
    for digest, (offset, count) in places.items():
        is_good = is_good and isinstance(digest, str) and _DIGEST.fullmatch(digest) is not None
        is_good = is_good and _is_size(offset, length) and _is_size(count, length - offset)
    if not is_good:
        raise LoanRefusedError("a replica on this host offers bytes outside of its memory")
    return Offer(host=host, length_bytes=length, places=places)


def socket_names(secret: bytes) -> list[bytes]:
    """Return where lenders that know a secret may stand."""
    return [
        b"\0zse-memory-" + mac(secret, "memory-socket", str(index))[:32].encode()
        for index in range(MOST_LENDERS)
    ]


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def borrower_proof(secret: bytes, lenders_challenge: str, borrowers_challenge: str) -> str:
    return mac(secret, "memory-borrower", lenders_challenge, borrowers_challenge)


def lender_proof(
    secret: bytes, lenders_challenge: str, borrowers_challenge: str, body: bytes
) -> str:
    digest = sha256(body).hexdigest()
    return mac(secret, "memory-lender", lenders_challenge, borrowers_challenge, digest)


def check_proof(expected: str, given: bytes) -> None:
    """Refuse who does not know the secret.

    Raises:
        LoanRefusedError: The proof is another.
    """
    if not is_equal(expected, given.decode("ascii", "replace")):
        raise LoanRefusedError("another process of this host does not know the peers' secret")


def split_proof(message: bytes) -> tuple[bytes, bytes]:
    """Return the proof that a message begins with, and the rest."""
    return message[:_PROOF_BYTES], message[_PROOF_BYTES:]


def check_user(connection: socket.socket) -> int:
    """Return the process at the other end, which is this user's.

    Raises:
        LoanRefusedError: It is another user's.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(raw)
    if user != os.geteuid():
        raise LoanRefusedError(
            f"a process of user {user} is at the socket of user {os.geteuid()}",
            hint="Run replicas that share memory as one user.",
        )
    return int(process)


def is_known(digest: str) -> bool:
    """Whether a digest says anything: one of nothing but zeros was left out of a file."""
    return bool(digest.strip("0"))


def _is_size(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def receive_with_descriptor(connection: socket.socket) -> tuple[bytes, int]:
    """Return a message and the one descriptor that came with it.

    Raises:
        LoanRefusedError: None came, or several.
        OSError: The other side has gone, or says nothing.
    """
    data, descriptors, flags, _ = socket.recv_fds(
        connection, MOST_OFFER_BYTES + _PROOF_BYTES, 1, socket.MSG_CMSG_CLOEXEC
    )
    is_cut = bool(flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC))
    if len(descriptors) == 1 and not is_cut:
        return data, descriptors[0]
    close_all(descriptors)
    raise LoanRefusedError(f"a replica on this host sent {len(descriptors)} descriptors, not one")


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
