"""A ready server lends the GPU memory that its weights lie in to replicas that start on its host.

Who borrows copies and says nothing meanwhile: the connection is the lease. Before the memory is
given back or holds anything else the lender ends the connections, which the kernel does at once,
and a borrower believes nothing that it had not copied, and waited for, while its connection stood.
So nobody here waits for a borrower, and one that stands still holds up nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING

from zse.device.host import host_identity
from zse.errors import StoreError, ZSEError
from zse.records import record
from zse.stream.peers.same_host import (
    HANDSHAKE_SECONDS,
    MOST_OFFER_BYTES,
    LoanRefusedError,
    Offer,
    borrower_proof,
    check_proof,
    check_user,
    is_known,
    lender_proof,
    new_socket,
    socket_names,
    split_proof,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.spec import ZSEHeader

_LOG = logging.getLogger("zse.stream")
LEASE_SECONDS = 10.0
"""A copy of the largest model takes less than one."""
_LEAVE_SECONDS = 0.25
"""How long a lender that closes gives borrowers to let go of its memory."""
_PAUSE_SECONDS = 0.1
_CHALLENGE_BYTES = 32


@record
class Lendable:
    """Weights in the memory of a GPU, as one file has them."""

    header: ZSEHeader
    """Of the groups that are there."""
    origin_bytes: int
    """Offset in the file of the first byte that is there; the others follow as in the file."""
    length_bytes: int
    export: Callable[[], int]
    """Returns a new descriptor of the memory; any thread may call it."""

    def offer(self) -> Offer:
        places = {
            group.sha256: (group.offset_bytes - self.origin_bytes, group.length_bytes)
            for group in self.header.groups
            if is_known(group.sha256)
        }
        return Offer(host=host_identity(), length_bytes=self.length_bytes, places=places)


class Lender:
    """Lends until it is closed.

    Args:
        lendable: The weights, all of which are there; they change no more before ``close``.
        secret: What replicas know.
        most_borrowers: At once; others are sent away.
        lease_seconds: How long one may borrow.

    Raises:
        StoreError: No socket is free for it, or this system does not say which host it is.
    """

    def __init__(
        self,
        lendable: Lendable,
        secret: bytes,
        *,
        most_borrowers: int = 8,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._lendable = lendable
        self._secret = secret
        self._lease_seconds = lease_seconds
        self._body = lendable.offer().to_bytes()
        _check(self._body)
        self._places = threading.BoundedSemaphore(most_borrowers)
        self._changed = threading.Condition()
        self._borrowers: set[socket.socket] = set()
        self._is_closed = False
        self.num_loans = 0
        """So far."""
        self._listener = _listening(secret)
        threading.Thread(target=self._listen, name="peers-lend", daemon=True).start()

    def close(self) -> None:
        """End all leases, and lend no more: from now on nobody believes what the memory holds.

        Borrowers have a moment to let go of it, so that it is free when its owner gives it back.
        """
        with self._changed:
            self._is_closed = True
            for connection in self._borrowers:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes who listens
        end = time.monotonic() + _LEAVE_SECONDS
        with self._changed:
            while self._borrowers and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._borrowers:
                _LOG.warning("a replica still holds GPU memory that this server has given back")

    # --- in threads of its own ------------------------------------------------------------------

    def _listen(self) -> None:
        with self._listener:
            while not self._is_closed:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # it was closed, or descriptors have run out
                    time.sleep(_PAUSE_SECONDS)
                else:
                    self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        try:
            process = check_user(connection)
        except (LoanRefusedError, OSError) as error:
            _LOG.info("a loan of weights was refused: %s", error)
            connection.close()
            return
        if not self._places.acquire(blocking=False):
            connection.close()
            return
        name = f"peers-lend-{process}"
        thread = threading.Thread(
            target=self._within, args=(connection, process), name=name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._places.release()
            connection.close()

    def _within(self, connection: socket.socket, process: int) -> None:
        try:
            self._lend(connection, process)
        except (ZSEError, OSError) as error:  # it left, or proves nothing
            _LOG.info("a loan of weights ended: %s", error)
        finally:
            connection.close()
            self._places.release()
            with self._changed:
                self._borrowers.discard(connection)
                self._changed.notify_all()

    def _lend(self, connection: socket.socket, process: int) -> None:
        connection.settimeout(HANDSHAKE_SECONDS)
        answer = self._answer(connection)
        self._hand_over(connection, answer)
        self.num_loans += 1
        _LOG.info("weights are lent", extra={"borrower": process})
        connection.settimeout(self._lease_seconds)
        connection.recv(1)  # which comes back when the borrower has let go, or the lease is over

    def _answer(self, connection: socket.socket) -> bytes:
        """Return the offer with its proof, once the borrower has proven itself."""
        challenge = secrets.token_hex(_CHALLENGE_BYTES // 2)
        connection.sendall(challenge.encode())
        given, rest = split_proof(connection.recv(4096))
        theirs = rest.decode("ascii", "replace")
        check_proof(borrower_proof(self._secret, challenge, theirs), given)
        return lender_proof(self._secret, challenge, theirs, self._body).encode() + self._body

    def _hand_over(self, connection: socket.socket, answer: bytes) -> None:
        with self._changed:
            if self._is_closed:
                raise LoanRefusedError("the model has left")
            self._borrowers.add(connection)
            descriptor = self._lendable.export()
        try:
            socket.send_fds(connection, [answer], [descriptor])
        finally:
            os.close(descriptor)


def _check(body: bytes) -> None:
    """Refuse what nobody could be told.

    Raises:
        StoreError: The system does not say which host it is, or there are too many groups.
    """
    if not host_identity():
        raise StoreError("this system does not say which host it is: /proc is not there")
    if len(body) > MOST_OFFER_BYTES:
        raise StoreError(
            f"the list of groups has {len(body)} bytes; replicas are sent {MOST_OFFER_BYTES}"
        )


def _listening(secret: bytes) -> socket.socket:
    names = socket_names(secret)
    random.shuffle(names)
    for name in names:
        found = new_socket()
        try:
            found.bind(name)
            found.listen(16)
        except OSError:  # another replica stands there
            found.close()
        else:
            return found
    raise StoreError(f"{len(names)} replicas of this host lend their memory already")
