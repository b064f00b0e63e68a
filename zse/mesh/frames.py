"""Frames: the one form in which machines of a mesh speak, bounded and signed.

    magic, version, kind, codec | epoch | step | bytes of the head, of the body | sign
    head (msgpack) | body (rows, or blocks of keys and values)

Every frame carries a sign (keyed BLAKE2b over its number in this direction and all its bytes), so
that nobody on the way can change, repeat or leave out one. Nothing is hidden: who may read the
wire reads texts; a mesh that crosses others' networks belongs inside WireGuard or the like.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from zse.errors import MeshError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"zM"
VERSION = 1
_HEADER = struct.Struct("<2sBBBxxxIQIQ")
SIGN_BYTES = 16
HEADER_BYTES = _HEADER.size + SIGN_BYTES
MOST_HEAD_BYTES = 16 << 20
MOST_BODY_BYTES = 1 << 30
_NOTHING = memoryview(b"")


class Kind(IntEnum):
    """What a frame is about."""

    ASK = 1
    """Of the front to a node: do something, and answer."""
    ANSWER = 2
    STEP = 3
    """Rows of a step, for the next stage."""
    TOKENS = 4
    """What the last stage has chosen."""
    BLOCKS = 5
    """Keys and values, for a standby."""
    BEAT = 6
    """Of the front: are you there."""
    STATE = 7
    """Of a node: how far its stages are."""


@record
class Frame:
    """One message."""

    kind: Kind
    codec: int = 0
    epoch: int = 0
    step: int = 0
    head: bytes | memoryview = b""
    body: bytes | bytearray | memoryview = _NOTHING


class Signer:
    """Signs the frames of one direction of one connection, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def sign(self, *parts: bytes | bytearray | memoryview) -> bytes:
        digest = hashlib.blake2b(digest_size=SIGN_BYTES, key=self._key)
        digest.update(struct.pack("<Q", self._number))
        self._number += 1
        for part in parts:
            digest.update(part)
        return digest.digest()


def packed(frame: Frame, signer: Signer) -> list[bytes | bytearray | memoryview]:
    """Return the parts of a frame as they are sent.

    Raises:
        MeshError: It is longer than a frame may be.
    """
    head_bytes, body_bytes = len(frame.head), len(frame.body)
    _check_lengths(head_bytes, body_bytes)
    header = _HEADER.pack(
        MAGIC, VERSION, frame.kind, frame.codec, frame.epoch, frame.step, head_bytes, body_bytes
    )
    sign = signer.sign(header, frame.head, frame.body)
    return [header + sign, frame.head, frame.body]


def read_frame(receive: Callable[[int], bytearray], signer: Signer) -> Frame:
    """Read one frame; ``receive`` returns exactly as many bytes as it is asked for.

    Raises:
        MeshError: What comes is no frame of this mesh, too long, or was changed on the way.
    """
    first = memoryview(receive(HEADER_BYTES))
    header, sign = first[: _HEADER.size], bytes(first[_HEADER.size :])
    magic, version, kind, codec, epoch, step, head_bytes, body_bytes = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise MeshError(
            f"a peer speaks {bytes(magic)!r} version {version}; expected {MAGIC!r} {VERSION}",
            hint="Let all nodes run the same version of zse.",
        )
    _check_lengths(head_bytes, body_bytes)
    rest = memoryview(receive(head_bytes + body_bytes))
    # Compared in constant time, and before anything of it is looked at.
    if not hmac.compare_digest(signer.sign(header, rest[:head_bytes], rest[head_bytes:]), sign):
        raise MeshError("a frame was changed, repeated or left out on its way")
    if kind not in Kind._value2member_map_:
        raise MeshError(f"a frame has the unknown kind {kind}")
    return Frame(
        kind=Kind(kind),
        codec=codec,
        epoch=epoch,
        step=step,
        head=rest[:head_bytes],
        body=rest[head_bytes:],
    )


def _check_lengths(head_bytes: int, body_bytes: int) -> None:
    if head_bytes > MOST_HEAD_BYTES or body_bytes > MOST_BODY_BYTES:
        raise MeshError(
            f"a frame has {head_bytes} and {body_bytes} bytes; at most {MOST_HEAD_BYTES} and "
            f"{MOST_BODY_BYTES} are taken"
        )
