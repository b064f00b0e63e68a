"""A starting server looks for replicas on its host that have its weights in a GPU's memory.

Whether any is there is known at once, before the GPU is open; who has what is asked meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
import threading
from itertools import chain
from typing import TYPE_CHECKING

from zse.device.host import host_identity
from zse.errors import ZSEError
from zse.stream.peers.same_host import (
    HANDSHAKE_SECONDS,
    LoanRefusedError,
    Offer,
    borrower_proof,
    check_proof,
    check_user,
    lender_proof,
    new_socket,
    read_offer,
    receive_with_descriptor,
    socket_names,
    split_proof,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_LOG = logging.getLogger("zse.stream")
_CHALLENGE_BYTES = 32


class Loan:
    """A replica's memory, which this process may map and copy from while the loan is valid.

    Args:
        connection: Its lease.
        descriptor: Of the memory; taken over.
    """

    def __init__(self, connection: socket.socket, descriptor: int, offer: Offer) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.descriptor = descriptor
        self.length_bytes = offer.length_bytes
        self._places = offer.places

    def place_of(self, digest: str, length_bytes: int) -> int | None:
        """Return where bytes of a SHA-256 lie in the memory; None where they do not."""
        place = self._places.get(digest)
        return place[0] if place is not None and place[1] == length_bytes else None

    def num_known(self, digests: Collection[str]) -> int:
        """Return how many of some groups are there."""
        return sum(digest in self._places for digest in digests)

    @property
    def is_valid(self) -> bool:
        """Whether the memory holds what was offered: all that was copied until now is right.

        The lender says nothing more, and ends the connection before it touches the memory.
        """
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Give it back, when the memory is no longer mapped; twice does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._connection.close()


class Borrowing:
    """Asks lenders for their offers in a thread, until one has all that is wanted.

    Args:
        connections: To lenders; those that are made are closed.
        digests: Of the groups that are wanted.
    """

    def __init__(
        self, connections: Iterator[socket.socket], secret: bytes, digests: Collection[str]
    ) -> None:
        self._connections = connections
        self._secret = secret
        self._digests = digests
        self._loan: Loan | None = None
        """The best so far."""
        self._lock = threading.Lock()
        self._is_over = False
        self._asked = threading.Event()
        threading.Thread(target=self._ask, name="peers-borrow", daemon=True).start()

    def take(self, seconds: float) -> Loan | None:
        """Return what a replica lends, its taker closes it; None where none does within a time."""
        self._asked.wait(seconds)
        with self._lock:
            self._is_over = True
            loan, self._loan = self._loan, None
        return loan

    def close(self) -> None:
        """Ask no more; give back what nobody took."""
        loan = self.take(0.0)
        if loan is not None:
            loan.close()

    def _ask(self) -> None:
        for connection in self._connections:
            if self._is_over:
                connection.close()
                break
            try:
                loan = borrowed(connection, self._secret)
            except (ZSEError, OSError) as error:
                _LOG.info("a replica on this host lends nothing: %s", error)
            else:
                if self._keep(loan):
                    break
        self._asked.set()

    def _keep(self, loan: Loan) -> bool:
        """Keep a loan if it is the best; whether nobody else need be asked."""
        known = loan.num_known(self._digests)
        unwanted: Loan | None
        with self._lock:
            least = 0 if self._loan is None else self._loan.num_known(self._digests)
            is_better = known > least and not self._is_over
            if is_better:
                self._loan, unwanted = loan, self._loan
            else:
                unwanted = loan
        if unwanted is not None:
            unwanted.close()
        return self._is_over or known == len(self._digests)


def borrowed(connection: socket.socket, secret: bytes) -> Loan:
    """Return what the lender at the other end of a connection, which is taken over, has.

    Raises:
        LoanRefusedError: It proves nothing, is on another host, or offers what cannot be.
        OSError: It has gone, or says nothing.
    """
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(HANDSHAKE_SECONDS)
        check_user(connection)
        theirs = connection.recv(4096).decode("ascii", "replace")
        own = secrets.token_hex(_CHALLENGE_BYTES // 2)
        connection.sendall(f"{borrower_proof(secret, theirs, own)}{own}".encode())
        message, descriptor = receive_with_descriptor(connection)
        undo.callback(os.close, descriptor)
        given, body = split_proof(message)
        check_proof(lender_proof(secret, theirs, own, body), given)
        offer = read_offer(body)
        if not offer.host or offer.host != host_identity():
            raise LoanRefusedError(f"a replica is on another host: {offer.host!r}")
        undo.pop_all()
    return Loan(connection, descriptor, offer)


def begin_borrowing(secret: bytes, digests: Collection[str]) -> Borrowing | None:
    """Begin to ask replicas of this host for their memory; None where there is none."""
    lenders = _lenders(secret)
    first = next(lenders, None)
    return None if first is None else Borrowing(chain((first,), lenders), secret, digests)


def _lenders(secret: bytes) -> Iterator[socket.socket]:
    """Yield connections to all that stand where lenders do, in an order of chance."""
    names = socket_names(secret)
    random.shuffle(names)
    for name in names:
        connection = new_socket()
        connection.setblocking(False)
        try:
            connection.connect(name)
        except OSError:  # nobody stands there, or too many wait there
            connection.close()
        else:
            yield connection
