"""Connections of a node to those that it sends to: made when an order names them, kept, watched."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from zse.errors import ZSEError
from zse.mesh.frames import Frame, Kind
from zse.mesh.link import Link
from zse.mesh.sending import LONG_BYTES
from zse.mesh.wakefulness import Wakefulness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.mesh.messages import Place

_LOG = logging.getLogger("zse.mesh")
_CALL_SECONDS = 1.0
_BEAT_SECONDS, _OVERSLEPT_SECONDS = 0.05, 0.15


class _Way:
    """A link that may still be under way; frames wait for it in their order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._waiting: list[Frame] = []
        self.is_ended = False
        self.begun = time.monotonic()

    @property
    def last_sign(self) -> float:
        """When something was heard, or something long was seen to arrive."""
        link = self._link
        return self.begun if link is None else max(link.last_heard, link.last_moved)

    @property
    def has_unread(self) -> bool:
        return self._link is not None and self._link.has_unread

    @property
    def last_moved(self) -> float:
        return self.begun if self._link is None else self._link.last_moved

    @property
    def backlog_bytes(self) -> int:
        with self._lock:
            waiting = sum(len(frame.body) for frame in self._waiting)
        return waiting + (self._link.backlog_bytes if self._link is not None else 0)

    def look(self, now: float) -> None:
        if self._link is not None:
            self._link.look(now)

    def drop(self, is_void: Callable[[Frame], bool]) -> None:
        with self._lock:
            self._waiting = [frame for frame in self._waiting if not is_void(frame)]
        if self._link is not None:
            self._link.drop(is_void)

    def send(self, frame: Frame) -> None:
        with self._lock:
            if self._link is None and not self.is_ended:
                self._waiting.append(frame)
                return
        if self._link is not None:
            self._link.send(frame)

    def open(self, link: Link) -> None:
        with self._lock:
            self._link = link.start()
            for frame in self._waiting:
                link.send(frame)
            self._waiting.clear()
        if self.is_ended:
            link.close()

    def end(self, reason: str) -> None:
        self.is_ended = True
        self._waiting.clear()
        if self._link is not None:
            self._link.close(reason)


class Outgoing:
    """Links by purpose and address. Rows and blocks have their own: neither waits for the other.

    Args:
        call: ``call(purpose, address, seconds)`` returns a channel.
    """

    def __init__(self, call: Callable[[str, str, float], Any]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._ways: dict[tuple[str, str], _Way] = {}
        self._nodes: dict[str, str] = {}
        """Address -> node, of those that the last order names."""
        self._stop = threading.Event()
        self._wakefulness = Wakefulness(_BEAT_SECONDS, _OVERSLEPT_SECONDS)
        self._beats: threading.Thread | None = None

    def keep(self, places: Iterable[Place], epoch: int) -> None:
        """Keep the links to these places alone, and nothing that waits and is of older epochs."""
        self._nodes = {place.address: place.node for place in places}
        with self._lock:
            gone = [key for key in self._ways if key[1] not in self._nodes]
            ways = [self._ways.pop(key) for key in gone]
            kept = list(self._ways.values())
        for way in ways:
            way.end("no longer a neighbour")
        for way in kept:
            way.drop(lambda frame: frame.kind is not Kind.BEAT and frame.epoch < epoch)

    def send(self, purpose: str, place: Place, frame: Frame) -> None:
        """Send a frame and never wait; what is lost with a link comes again by the next order."""
        key = purpose, place.address
        with self._lock:
            way = self._ways.get(key)
            if way is None or way.is_ended:
                way = self._ways[key] = _Way()
                threading.Thread(target=self._open, args=(key, way), daemon=True).start()
            if self._beats is None:
                self._beats = threading.Thread(target=self._beat, daemon=True)
                self._beats.start()
        way.send(frame)

    def backlog_bytes(self, purpose: str, place: Place) -> int:
        """Return the bytes that were sent to a place and have not arrived there yet."""
        with self._lock:
            way = self._ways.get((purpose, place.address))
        return 0 if way is None or way.is_ended else way.backlog_bytes

    def moving(self, seconds: float) -> list[str]:
        """Return the purposes of what is on its way and had bytes arrive in the last seconds."""
        now = time.monotonic()
        with self._lock:
            ways = list(self._ways.items())
        moving = {
            purpose
            for (purpose, _), way in ways
            if now - way.last_moved < seconds and way.backlog_bytes >= LONG_BYTES
        }
        return sorted(moving)

    def silent(self, seconds: float) -> list[str]:
        """Return the nodes that were sent to and have not been heard of for so long.

        Nobody is while this process has only begun to run again, and has not read what came.
        """
        now, awake = time.monotonic(), self._wakefulness
        if awake.is_asleep(now):
            return []
        with self._lock:
            ways = list(self._ways.items())
        quiet = {
            address
            for (_, address), way in ways
            if now - max(way.last_sign, awake.since) > seconds and not way.has_unread
        }
        return [self._nodes[address] for address in quiet if address in self._nodes]

    @property
    def late_seconds(self) -> float:
        """By which the beats of this node were late lately."""
        return self._wakefulness.late_seconds(time.monotonic())

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            ways = list(self._ways.values())
        for way in ways:
            way.end("closed here")

    def _open(self, key: tuple[str, str], way: _Way) -> None:
        purpose, address = key
        try:
            channel = self._call(purpose, address, _CALL_SECONDS)
        except ZSEError as error:
            _LOG.warning("%s cannot be sent to: %s", address, error)
            way.end(str(error))
            return
        way.open(Link(channel, _ignore, lambda _link, reason: self._ended(key, way, reason)))

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            with self._lock:
                ways = list(self._ways.values())
            now = time.monotonic()
            self._wakefulness.look(now)
            for way in ways:
                way.look(now)
                way.send(Frame(kind=Kind.BEAT))

    def _ended(self, key: tuple[str, str], way: _Way, reason: str) -> None:
        way.is_ended = True
        _LOG.info("the way to %s ended: %s", key[1], reason)


def _ignore(_link: Link, _frame: Frame) -> None:
    """Beats are answered; the link has noted when."""
