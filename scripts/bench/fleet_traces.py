"""Requests of many models: bursts with long silences, and a moment when many wake at once.

A model is silent for a time that is spread over decades (lognormal: most silences are short, a few
are hours), then is asked for a while (exponential) at a steady rate (Poisson). Seeded: a trace is
the same on every machine.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Request:
    at: float
    """Seconds since the trace began."""
    model: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Bursts:
    """How often models are asked.

    Args:
        silence_seconds: Mean of the silences; ``spread`` is the sigma of their logarithm.
        burst_seconds: Mean length of a burst.
        rate: Requests a second within one.
        crowd_share: Of the models that begin a burst within a second at ``crowd_at``.
    """

    silence_seconds: float = 600.0
    spread: float = 1.5
    burst_seconds: float = 30.0
    rate: float = 1.0
    prompt_tokens: int = 512
    output_tokens: int = 128
    crowd_at: float = 0.0
    crowd_share: float = 0.0


def requests_of(bursts: Bursts, *, models: int, seconds: float, seed: int) -> Iterator[Request]:
    """Return the requests of all models in the order of time."""
    return heapq.merge(
        *(
            _of_model(bursts, model, seconds, random.Random(f"{seed}/{model}"))
            for model in range(models)
        ),
        key=lambda request: request.at,
    )


def _of_model(bursts: Bursts, model: int, seconds: float, lot: random.Random) -> Iterator[Request]:
    in_crowd = lot.random() < bursts.crowd_share
    crowd_at = bursts.crowd_at + lot.random()
    mu = math.log(bursts.silence_seconds) - bursts.spread**2 / 2
    # As if it had gone on for ever: the first silence is cut somewhere in its midst.
    now, quiet_from = lot.lognormvariate(mu, bursts.spread) * lot.random(), 0.0
    while now < seconds:
        if in_crowd and now > crowd_at:
            now, in_crowd = max(crowd_at, quiet_from), False
        end = now + lot.expovariate(1 / bursts.burst_seconds)
        while now < min(end, seconds):
            yield Request(
                at=now,
                model=model,
                prompt_tokens=max(1, round(lot.expovariate(1 / bursts.prompt_tokens))),
                output_tokens=max(1, round(lot.expovariate(1 / bursts.output_tokens))),
            )
            now += lot.expovariate(bursts.rate)
        quiet_from = max(now, end)
        now = quiet_from + lot.lognormvariate(mu, bursts.spread)
    if in_crowd and crowd_at < seconds:
        yield Request(max(crowd_at, quiet_from), model, bursts.prompt_tokens, bursts.output_tokens)


def poisson(rate: float, *, seconds: float, output_tokens: float, seed: int) -> Iterator[Request]:
    """Return requests of one model that theory knows: no bursts, lengths spread exponentially.

    Lengths are many tokens each, so that rounding them to whole ones changes nothing.
    """
    lot, now = random.Random(seed), 0.0
    while (now := now + lot.expovariate(rate)) < seconds:
        yield Request(now, 0, 0, max(1, round(lot.expovariate(1 / output_tokens))))
