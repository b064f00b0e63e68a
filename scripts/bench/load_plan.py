"""What is asked in a load test, and when: the same for every server, made from a seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

# fmt: off
WORDS = (
    "the", "of", "and", "to", "in", "is", "was", "for", "on", "that", "by", "with", "as", "at",
    "from", "it", "an", "be", "are", "this", "had", "not", "but", "have", "one", "were", "has",
    "its", "new", "first", "also", "two", "they", "who", "been", "after", "time", "over", "year",
    "when", "only", "some", "city", "people", "state",
)
# fmt: on
"""Words that are one token each in nearly every vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One request of the load."""

    at_seconds: float
    """From the start of the load; when it is sent does not depend on any answer."""
    prompt: str
    num_output: int


def plan_load(options: argparse.Namespace, *, rate: float) -> list[Planned]:
    """Return requests of a Poisson process, in the order of their times.

    Lengths are log-uniform between their bounds, in words; a share of the prompts begins with one
    of a few long texts.
    """
    draw = random.Random(f"{options.seed}/{rate}")
    prefixes = [_words(draw, options.prefix) for _ in range(options.prefixes)]
    planned: list[Planned] = []
    at_seconds = draw.expovariate(rate)
    while at_seconds < options.seconds:
        num_words = _log_uniform(draw, *options.input)
        begins = draw.choice(prefixes) if draw.random() < options.shared else ""
        planned.append(
            Planned(
                at_seconds=at_seconds,
                prompt=f"{begins} {_words(draw, num_words)}".strip(),
                num_output=_log_uniform(draw, *options.output),
            )
        )
        at_seconds += draw.expovariate(rate)
    return planned


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def _log_uniform(draw: random.Random, least: int, most: int) -> int:
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))
