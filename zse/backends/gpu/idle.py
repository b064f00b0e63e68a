"""Which steps a GPU is made ready for while nobody asks anything.

A server that has answered little takes 35 ms for the first step of each number of answers, which it
captures: a crowd that comes first would wait for that one step after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import MAX_BUCKET, GraphKey, bucket_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def keys_to_capture(captured: Collection[GraphKey], max_sequences: int) -> Iterator[GraphKey]:
    """Yield the usual steps of answers that are not captured, those of few answers first.

    How tokens were chosen in a captured step, they will be chosen in others.
    """
    samplings = list(dict.fromkeys(key.sampling for key in captured if _is_usual(key)))
    rows = 2
    while rows <= min(bucket_of(max_sequences), MAX_BUCKET):
        for sampling in samplings:
            key = GraphKey("decode", rows, sampling)
            if key not in captured:
                yield key
        rows *= 2


def _is_usual(key: GraphKey) -> bool:
    is_plain = not (key.sampling.masked or key.sampling.adjusted)
    return key.kind == "decode" and is_plain and not key.adapter_tiles and key.guess is None
