"""How ranks give each other what a start needs: small payloads and open files, over Unix sockets.

Every rank has one socket to rank 0, which hands round what all gave. A rank that fails says so
there, and its end is the end of its socket.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from zse import errors
from zse.backends.ranks import Gift, Share
from zse.errors import DeviceError, ZSEError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.engine.ranks.shared import SharedMemory

MOST_BYTES = 1 << 16
_MOST_DESCRIPTORS = 64
_LOOK_SECONDS = 0.1


class Given(msgspec.Struct, array_like=True, tag="given"):
    """What a rank gives; so many descriptors come with it."""

    payload: bytes


class Round(msgspec.Struct, array_like=True, tag="round"):
    """What all gave, and how many descriptors each: those of the others come with it."""

    payloads: list[bytes]
    num_descriptors: list[int]


class Failed(msgspec.Struct, array_like=True, tag="failed"):
    """Why a rank ends."""

    kind: str
    message: str
    hint: str


class Task(msgspec.Struct, array_like=True, tag="task"):
    """What a rank is told at its start; the model's open file comes with it."""

    path: str
    """What the file was called when it was opened."""
    options: dict[str, str | int | float | bool | None]
    cache_dir: str | None
    rank: int
    devices: list[str]
    """Of all ranks."""
    ends: list[int]
    """Layer behind each stage."""
    layers: list[int]
    """The first one and the one behind the last, of a stage of several machines; else empty."""
    spin_nanoseconds: int


Note = Given | Round | Failed | Task
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Note] = msgspec.msgpack.Decoder(Note)


def send_note(to: socket.socket, note: Note, descriptors: Sequence[int] = ()) -> None:
    """Send a note; an ``OSError`` says that the other side has gone."""
    socket.send_fds(to, [_ENCODER.encode(note)], list(descriptors))


def receive_note(source: socket.socket) -> tuple[Note, list[int]] | None:
    """Return the next note and its descriptors; None where the other side has gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(
            source, 2 * MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None
    if not data:
        return None
    return _DECODER.decode(data), descriptors


def note_of(error: BaseException) -> Failed:
    """Return how a failure is told."""
    name = type(error).__name__
    if isinstance(error, ZSEError):
        return Failed(name, str(error), error.hint or "")
    return Failed(name, f"{name}: {error}", "")


def error_of(who: str, failed: Failed) -> ZSEError:
    """Return the error that a rank told: of its own class where that is one of ours."""
    kind = getattr(errors, failed.kind, None)
    told = f"{who}: {failed.message}"
    if isinstance(kind, type) and issubclass(kind, ZSEError):
        try:
            return kind(told, hint=failed.hint)
        except TypeError:
            pass
    return DeviceError(told, hint=failed.hint)


class RankLinkBase(ABC):
    """What the sides have in common; see ``zse.backends.ranks.RankLink``."""

    def __init__(self, share: Share, shared: SharedMemory) -> None:
        self.share = share
        self.shared = shared

    @property
    def broken_address(self) -> int:
        return self.shared.broken_address

    def memory(self, length_bytes: int) -> int:
        return self.shared.area(length_bytes)

    def least(self, numbers: Sequence[int]) -> list[int]:
        gifts = self.exchange(msgspec.msgpack.encode(list(numbers)))
        rows = [msgspec.msgpack.decode(gift.payload, type=list[int]) for gift in gifts]
        return [min(column) for column in zip(*rows, strict=True)]

    @abstractmethod
    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        """Give something to all ranks, and return what each gave, in rank order."""

    @abstractmethod
    def check(self) -> None:
        """Raise what became of a rank that is gone."""


class LeaderLink(RankLinkBase):
    """Rank 0's link.

    Args:
        share: Rank 0.
        shared: The pages of all.
        sockets: To each of the others, in their order.
        check: Raises where the ranks have failed.
    """

    def __init__(
        self,
        share: Share,
        shared: SharedMemory,
        sockets: Sequence[socket.socket],
        check: Callable[[], None],
    ) -> None:
        super().__init__(share, shared)
        self._sockets = sockets
        self._check = check
        self._given: list[deque[Gift]] = [deque() for _ in sockets]
        self._has_come = threading.Condition()

    def put(self, rank: int, gift: Gift) -> None:
        """Take what another rank gave; called by who watches the sockets."""
        with self._has_come:
            self._given[rank - 1].append(gift)
            self._has_come.notify_all()

    def wake(self) -> None:
        """Have who waits look whether the ranks have failed."""
        with self._has_come:
            self._has_come.notify_all()

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        _check_size(payload)
        with self._has_come:
            while not all(self._given):
                self._check()
                self._has_come.wait(_LOOK_SECONDS)
            gifts = [Gift(payload, tuple(descriptors)), *(one.popleft() for one in self._given)]
        payloads = [gift.payload for gift in gifts]
        counts = [len(gift.descriptors) for gift in gifts]
        for rank, to in enumerate(self._sockets, start=1):
            others = [fd for at, gift in enumerate(gifts) if at != rank for fd in gift.descriptors]
            try:
                send_note(to, Round(payloads, counts), others)
            except OSError:
                self._check()
        return gifts

    def check(self) -> None:
        self._check()


class MemberLink(RankLinkBase):
    """Another rank's link: the other end of its socket is rank 0's."""

    def __init__(self, share: Share, shared: SharedMemory, leader: socket.socket) -> None:
        super().__init__(share, shared)
        self._leader = leader

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        _check_size(payload)
        try:
            send_note(self._leader, Given(payload), descriptors)
        except OSError:
            raise _gone() from None
        while not select.select([self._leader], [], [], _LOOK_SECONDS)[0]:
            self.check()
        received = receive_note(self._leader)
        if received is None:
            raise _gone()
        note, arrived = received
        if not isinstance(note, Round):
            raise _gone()
        gifts = []
        for rank, (given, count) in enumerate(
            zip(note.payloads, note.num_descriptors, strict=True)
        ):
            if rank == self.share.rank:
                gifts.append(Gift(given, tuple(descriptors)))
            else:
                gifts.append(Gift(given, tuple(arrived[:count])))
                arrived = arrived[count:]
        return gifts

    def check(self) -> None:
        if self.shared.is_broken:
            raise _gone()


def close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _check_size(payload: bytes) -> None:
    if len(payload) > MOST_BYTES:
        raise DeviceError(f"{len(payload)} bytes were to be exchanged, at most {MOST_BYTES} are")


def _gone() -> DeviceError:
    return DeviceError("another rank has failed")
