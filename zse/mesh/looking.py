"""Whether a node can be reached, and how fast: one small message there and back, then a burst."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zse.errors import MeshError, ZSEError
from zse.mesh.frames import Frame, Kind, packed, read_frame
from zse.mesh.messages import Look

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.handshake import Channel
    from zse.mesh.messages import AskLook

MOST_PROBE_BYTES = 8 << 20
_MOST_LOOKS = 16
_ROUNDS = 3


def look(call: Callable[[str, float], Channel], ask: AskLook) -> Look:
    """Call an address and say what was seen."""
    try:
        channel = call(ask.address, ask.seconds)
    except ZSEError as error:
        return Look(is_there=False, error=str(error))
    try:
        channel.socket.settimeout(ask.seconds)
        taken = min(_round_trip(channel, 0) for _ in range(_ROUNDS if ask.probe_bytes else 1))
        rate = 0.0
        if ask.probe_bytes:
            num_bytes = min(ask.probe_bytes, MOST_PROBE_BYTES)
            burst = _round_trip(channel, num_bytes)
            rate = num_bytes / max(burst - taken, 1e-6)
        return Look(is_there=True, seconds=taken / 2, bytes_per_second=rate)
    except (OSError, MeshError) as error:
        return Look(is_there=False, error=str(error))
    finally:
        channel.socket.close()


def answer_looks(channel: Channel) -> None:
    """Answer whoever looks, a few times: a small frame for each of theirs."""
    with channel.socket:
        channel.socket.settimeout(5.0)
        for _ in range(_MOST_LOOKS):
            try:
                frame = read_frame(lambda count: _exactly(channel, count), channel.receives)
                if len(frame.body) > MOST_PROBE_BYTES:
                    return
                _send(channel, Frame(kind=Kind.STATE, step=frame.step))
            except (OSError, MeshError):
                return


def _round_trip(channel: Channel, num_bytes: int) -> float:
    begun = time.perf_counter()
    _send(channel, Frame(kind=Kind.BEAT, body=bytes(num_bytes)))
    read_frame(lambda count: _exactly(channel, count), channel.receives)
    return time.perf_counter() - begun


def _send(channel: Channel, frame: Frame) -> None:
    channel.socket.sendall(b"".join(bytes(part) for part in packed(frame, channel.sends)))


def _exactly(channel: Channel, count: int) -> bytearray:
    data = bytearray()
    while len(data) < count:
        piece = channel.socket.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise MeshError("the peer hung up")
        data += piece
    return data
