"""The forms in which numbers of the residual stream cross a wire: their names and their sizes.

``raw`` is exact: float32, as a processor computes. The others lose something; whether that may be
is the user's to say, since no error shows in a plan.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.mesh.facts import LinkFacts

GROUP = 64
"""Numbers that share a scale, and that Hadamard's signs mix where there are four bits."""
_NUMBER_SECONDS = 2e-9
"""That a processor takes to write and to read a number in a form that is not raw."""


class Codec(IntEnum):
    """How rows are written; the numbers stand in frames."""

    RAW = 0
    BF16 = 1
    FP8 = 2
    INT8 = 3
    INT4 = 4

    @property
    def word(self) -> str:
        return self.name.lower()

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row of ``width`` numbers."""
        groups = -(-width // GROUP)
        if self is Codec.RAW:
            return 4 * width
        if self is Codec.BF16:
            return 2 * width
        if self is Codec.INT4:
            return groups * (GROUP // 2 + 2)
        if self is Codec.INT8:
            return groups * 2 + width
        return 2 + width

    def seconds(self, link: LinkFacts, rows: int, width: int) -> float:
        """Return how long rows are on their way in this form, written and read."""
        coding = 0.0 if self is Codec.RAW else rows * width * _NUMBER_SECONDS
        return link.seconds + rows * self.row_bytes(width) / link.bytes_per_second + coding


def codec_named(word: str) -> Codec:
    """Return a form by its name.

    Raises:
        UsageError: There is none of that name.
    """
    for codec in Codec:
        if codec.word == word:
            return codec
    words = ", ".join(codec.word for codec in Codec)
    raise UsageError(f"no form of activations is named {word!r}", hint=f"Use one of {words}.")


def best_codec(link: LinkFacts, rows: int, width: int, allowed: Codec) -> Codec:
    """Return the form in which rows arrive first, none that loses more than ``allowed``.

    Among forms that are equally fast within a twentieth the one that loses least.
    """
    codecs = [codec for codec in Codec if codec <= allowed]
    times = {codec: codec.seconds(link, rows, width) for codec in codecs}
    limit = min(times.values()) * 1.05
    return next(codec for codec in codecs if times[codec] <= limit)
