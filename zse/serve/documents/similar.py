"""Which vectors are nearest to one: all of them are compared, with numpy.

numpy comes with the extra ``rag``; without it the same is computed a number at a time, which takes
eight times as long.
"""

from __future__ import annotations

import heapq
from array import array
from operator import mul
from typing import TYPE_CHECKING, Any

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


@record
class Near:
    """A chunk and how near it is."""

    chunk: int
    similarity: float
    """Cosine of the angle between two vectors."""


class VectorTable:
    """Vectors of length 1, float32, each of a chunk.

    Args:
        chunks: Their ids.
        blobs: Their numbers, the lowest byte first.
        size: Numbers of each.
    """

    def __init__(self, chunks: Sequence[int], blobs: Sequence[bytes], size: int) -> None:
        self.chunks = list(chunks)
        self.size = size
        self._numpy = _numpy()
        self._rows: Any
        if self._numpy is not None:
            joined = self._numpy.frombuffer(b"".join(blobs), dtype="<f4")
            self._rows = joined.reshape(len(self.chunks), size)
        else:
            self._rows = [numbers_of(blob) for blob in blobs]

    def nearest(
        self, query: array[float], most: int, among: Collection[int] | None = None
    ) -> list[Near]:
        """Return the nearest chunks, the nearest first; of ``among`` where it is given."""
        pairs: Iterable[tuple[float, int]]
        if self._numpy is not None:
            scores = self._rows @ self._numpy.frombuffer(query, dtype="<f4")
            places: Iterable[int] = range(len(scores))
            if among is None and most < len(scores):
                places = self._numpy.argpartition(scores, -most)[-most:].tolist()
            pairs = [(float(scores[place]), self.chunks[place]) for place in places]
        else:
            scored = (sum(map(mul, row, query)) for row in self._rows)
            pairs = zip(scored, self.chunks, strict=True)
        kept = pairs if among is None else (pair for pair in pairs if pair[1] in among)
        return [
            Near(chunk=chunk, similarity=score)
            for score, chunk in heapq.nlargest(most, kept, key=lambda pair: (pair[0], -pair[1]))
        ]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def numbers_of(blob: bytes) -> array[float]:
    """Return the numbers of a blob; the inverse of ``blob_of``."""
    numbers = array("f")
    numbers.frombytes(blob)
    return _little(numbers)


def blob_of(numbers: array[float]) -> bytes:
    """Return float32 numbers as bytes, the lowest of each first."""
    return _little(numbers).tobytes()


def _little(numbers: array[float]) -> array[float]:
    import sys

    if sys.byteorder == "big":
        numbers = array("f", numbers)
        numbers.byteswap()
    return numbers
