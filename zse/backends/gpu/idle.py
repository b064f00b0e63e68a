"""Which steps a GPU is made ready for while nobody asks anything.

A server that has answered little takes 35 ms for the first step of each number of answers, which it
captures, and goes through all layers of its first steps with prompts: a crowd that comes first
would wait for that one step after the other.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import MAX_BUCKET, GraphKey, bucket_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from zse.backends.gpu.patterns import Patterns
    from zse.options import BatchOptions

ANSWERS = (0, 1, 5, 20, 40, 80, 120, 250)
PROMPT_ROWS = (300, 512, 720, 880, 1000, 1130, 1250, 2000, 3500)
"""Of the steps by which patterns are learned; others launch the same kernels as one of these. Which
form of a product ends first changes with tiles of 128 rows, answers included."""
UNLIKE_ROWS = (0, 19, 38)
"""Rows fewer, of three steps that are alike but for them: so many make a pattern that is used."""


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


def steps_to_rehearse(patterns: Patterns, options: BatchOptions) -> Iterator[tuple[int, int]]:
    """Yield answers and rows of prompts of steps that were not rehearsed yet."""
    if not patterns.are_wanted:
        return
    for step in product(ANSWERS, PROMPT_ROWS):
        fits = step[0] < options.max_sequences and sum(step) <= options.max_batch_tokens
        if fits and step not in patterns.rehearsed:
            yield step


def _is_usual(key: GraphKey) -> bool:
    is_plain = not (key.sampling.masked or key.sampling.adjusted)
    return key.kind == "decode" and is_plain and not key.adapter_tiles and key.guess is None
