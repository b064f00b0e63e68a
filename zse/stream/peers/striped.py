"""One file from several replicas and its origin, as one source.

Replicas come first: what they bring costs nobody an object store's bytes. A group of the file comes
from one replica while that goes well, so that a wrong digest says whose bytes they were. A replica
that lies, stalls or dies is asked no more, and what it had not brought comes from others, at last
from the origin. One that is busy is asked again after a moment that is another for everybody.
"""

from __future__ import annotations

import bisect
import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from zse.errors import LoadCancelledError
from zse.stream.peers.peer import PeerBusyError, PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.stream.peers.peer import Peer
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.stream")
READS_A_PEER = 4
"""Connections to one replica at most."""
BUSY_SECONDS = 20.0
"""How long busy replicas are asked again before the origin is."""
_SMALL_BYTES = 64 << 10
_PAUSE_SECONDS = (0.02, 0.25)


class StripedSource:
    """See ``ByteSource``; the origin is closed with it.

    Args:
        origin: The file where it always is.
        peers: Replicas that may have it.
        unit_starts: Where groups begin, ascending: what lies between comes from one replica.
    """

    kind = "peers"

    def __init__(
        self, origin: ByteSource, peers: Sequence[Peer], unit_starts: Sequence[int]
    ) -> None:
        self._origin = origin
        self._peers = list(peers)
        self._all_peers = tuple(peers)
        self._starts = sorted(unit_starts)
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._of_unit: dict[int, Peer] = {}
        self._brought: dict[int, set[Peer]] = {}
        self._liars: set[Peer] = set()
        self.origin_bytes = 0
        """Bytes that came from the origin."""
        self.peer_bytes = 0

    @property
    def name(self) -> str:
        return self._origin.name

    @property
    def size_bytes(self) -> int:
        return self._origin.size_bytes

    @property
    def num_peers(self) -> int:
        """Replicas that are still asked."""
        return len(self._peers)

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view``; see ``ByteSource``.

        What is small comes from the origin, since nobody may hold it against a digest.
        """
        if len(view) < _SMALL_BYTES:
            self._read_origin(offset_bytes, view)
            return
        unit = bisect.bisect_right(self._starts, offset_bytes)
        filled, busy_until = 0, 0.0
        while filled < len(view):
            if self._stopped.is_set():
                raise LoadCancelledError(f"reading {self.name} was stopped")
            is_patient = not busy_until or time.monotonic() < busy_until
            peer = self._take(unit, len(view) - filled) if is_patient else None
            with view[filled:] as rest:
                if peer is None:
                    self._read_origin(offset_bytes + filled, rest)
                    return
                try:
                    filled += self._read_peer(peer, unit, offset_bytes + filled, rest)
                except PeerBusyError:
                    busy_until = busy_until or time.monotonic() + BUSY_SECONDS
                    self._stopped.wait(random.uniform(*_PAUSE_SECONDS))

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        """Whether a read of this range waits for a network: always."""
        return self._origin.is_slow(offset_bytes, length_bytes)

    def distrust(self, offset_bytes: int, length_bytes: int) -> bool:
        """Take a range's digest for wrong: who brought of it is asked no more.

        Returns:
            Whether the range may come right when it is read again.
        """
        first = bisect.bisect_right(self._starts, offset_bytes)
        last = bisect.bisect_right(self._starts, offset_bytes + max(length_bytes, 1) - 1)
        with self._changed:
            brought = {
                peer for unit in range(first, last + 1) for peer in self._brought.pop(unit, set())
            }
            # Of one that is known to lie a part may have been there when that became known.
            liars = brought & self._liars or brought
            self._liars |= liars
        for peer in liars:
            self._drop(peer, "what it brought has another digest")
        return bool(liars)

    def check_unchanged(self) -> None:
        self._origin.check_unchanged()

    def interrupt(self) -> None:
        self._stopped.set()
        self._origin.interrupt()
        for peer in self._all_peers:
            peer.interrupt()

    def close(self) -> None:
        self._origin.close()
        for peer in self._all_peers:
            peer.close()

    # --- whom to ask ----------------------------------------------------------------------------

    def _take(self, unit: int, length_bytes: int) -> Peer | None:
        """Return who is asked next, with its read counted; None where no replica is left.

        Waits while all that are left have as many reads as they get.
        """
        with self._changed:
            while self._peers and not self._stopped.is_set():
                free = [peer for peer in self._peers if peer.num_reading < READS_A_PEER]
                if free:
                    return self._chosen(unit, free, length_bytes)
                self._changed.wait(_PAUSE_SECONDS[1])
        return None

    def _chosen(self, unit: int, free: list[Peer], length_bytes: int) -> Peer:
        peer = self._of_unit.get(unit)
        if peer is None or peer not in free:
            least = min(each.num_bytes for each in free)
            peer = random.choice([each for each in free if each.num_bytes == least])
            self._of_unit[unit] = peer
        peer.num_reading += 1
        peer.num_bytes += length_bytes
        return peer

    def _release(self, peer: Peer, unit: int, count: int) -> None:
        with self._changed:
            peer.num_reading -= 1
            self.peer_bytes += count
            if count:
                self._brought.setdefault(unit, set()).add(peer)
            else:
                self._of_unit.pop(unit, None)
            self._changed.notify()

    def _read_peer(self, peer: Peer, unit: int, offset_bytes: int, view: memoryview) -> int:
        """Return how much of a view a replica filled; it is dropped where that is not all."""
        count = 0
        try:
            count = peer.read_into(offset_bytes, view, self.size_bytes)
        except PeerBusyError:
            raise
        except PeerError as error:
            if not self._stopped.is_set():
                self._drop(peer, str(error))
        finally:
            self._release(peer, unit, count)
        if 0 < count < len(view) and not self._stopped.is_set():
            self._drop(peer, "it stopped in the middle of a range")
        return count

    def _read_origin(self, offset_bytes: int, view: memoryview) -> None:
        self._origin.read_into(offset_bytes, view)
        with self._changed:
            self.origin_bytes += len(view)

    def _drop(self, peer: Peer, why: str) -> None:
        with self._changed:
            if peer not in self._peers:
                return
            self._peers.remove(peer)
        _LOG.warning("the replica %s is asked no more: %s", peer.url, why)
