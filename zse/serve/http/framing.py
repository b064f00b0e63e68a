"""Where the body of a request ends: after its length, or after its last chunk.

Chunks are read by the letter: extensions and trailers, which nobody needs here and parsers have
read differently, are refused.
"""

from __future__ import annotations

import re
from math import inf
from typing import Protocol

from zse.serve.http.head import MalformedRequestError

_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_MAX_SIZE_LINE = 10
_FEW_BYTES = 64
"""What a chunk should have, for each takes a microsecond or two to find."""
SPARE_BYTES = _FEW_BYTES * 1024
"""What the chunks of a request may lack of that, all together: a thousand may have next to nothing.

A quarter of a megabyte of chunks of one byte would keep the loop for a tenth of a second."""
_LINE_END = b"\r\n"


def as_chunk(data: bytes) -> bytes:
    """Return bytes of an answer, at least one, as a chunk of it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Framing(Protocol):
    """Takes a body out of what has been received."""

    is_done: bool

    def take(self, buffer: bytearray) -> bytes:
        """Remove what is of the body from the front of the buffer and return its content.

        Raises:
            MalformedRequestError: It is no body of this kind.
        """


def framing_of_request(length: int | None) -> Framing:
    """Return what takes the body of a request: of a known length, or in chunks."""
    return ChunkFraming(spare_bytes=SPARE_BYTES) if length is None else LengthFraming(length)


class LengthFraming:
    """A body of a known length."""

    def __init__(self, length: int) -> None:
        self._num_left = length
        self.is_done = length == 0

    def take(self, buffer: bytearray) -> bytes:
        data = bytes(buffer[: self._num_left])
        del buffer[: len(data)]
        self._num_left -= len(data)
        self.is_done = self._num_left == 0
        return data


class ChunkFraming:
    """A body in chunks.

    Args:
        spare_bytes: What small chunks may lack, all together; longer ones bring it back.
    """

    def __init__(self, *, spare_bytes: float = inf) -> None:
        self._most_spare = self._num_spare = spare_bytes
        self._num_left = 0
        """Of the current chunk, with the line end behind it."""
        self._is_last = False
        self.is_done = False

    def take(self, buffer: bytearray) -> bytes:
        content = []
        start = 0
        while not self.is_done and start < len(buffer):
            if self._num_left == 0 and not self._is_last:
                line_end = self._find_size(buffer, start)
                if line_end < 0:
                    break
                start = line_end
            elif self._num_left > len(_LINE_END):
                piece = bytes(buffer[start : start + self._num_left - len(_LINE_END)])
                content.append(piece)
                start += len(piece)
                self._num_left -= len(piece)
            else:
                if len(buffer) - start < len(_LINE_END):
                    break
                self._end_chunk(bytes(buffer[start : start + len(_LINE_END)]))
                start += len(_LINE_END)
        del buffer[:start]
        return b"".join(content)

    def _find_size(self, buffer: bytearray, start: int) -> int:
        """Read the line with the next chunk's size; return where it ends, or -1."""
        end = buffer.find(_LINE_END, start, start + _MAX_SIZE_LINE)
        if end < 0:
            if len(buffer) - start >= _MAX_SIZE_LINE:
                raise MalformedRequestError("the size of a chunk is not a number")
            return -1
        line = bytes(buffer[start:end])
        if _CHUNK_SIZE.fullmatch(line) is None:
            raise MalformedRequestError("the size of a chunk is not a number")
        size = int(line, 16)
        self._num_spare = min(self._most_spare, self._num_spare + size - _FEW_BYTES)
        if self._num_spare < 0:
            raise MalformedRequestError("the body is cut into too many chunks of a few bytes")
        self._is_last = size == 0
        self._num_left = size + len(_LINE_END)
        return end + len(_LINE_END)

    def _end_chunk(self, end: bytes) -> None:
        if end != _LINE_END:
            raise MalformedRequestError("a chunk is longer than it says, or has trailers")
        self._num_left = 0
        self.is_done = self._is_last
