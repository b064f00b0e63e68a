"""How many replicas a model has, and when they go: policies, apart from what simulates them.

A policy sees numbers alone (``Seen``) and says numbers. Who of several replicas gets a request is
said by ``zse.route.choice``, the code that `zse route` goes by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Seen:
    """What a policy sees of a model."""

    in_flight: int
    """Requests that replicas work on, or that wait for one."""
    replicas: int
    """That are there, or on their way."""


class Policy(Protocol):
    """When replicas come and go."""

    at_least: int
    """Replicas of each model that never go; they are there when the trace begins."""
    idle_seconds: float
    """Without a request, until a replica goes."""
    shares_gpus: bool
    """Whether models swap on GPUs that are paid for all the time, processes and all."""

    def wanted(self, seen: Seen) -> int:
        """Return how many replicas there are to be, asked at each request."""


@dataclass(frozen=True)
class AlwaysWarm:
    """So many replicas for each model, whatever happens."""

    at_least: int = 1
    idle_seconds: float = math.inf
    shares_gpus: bool = False

    def wanted(self, seen: Seen) -> int:  # noqa: ARG002
        return self.at_least


@dataclass(frozen=True)
class ScaleToZero:
    """A replica for so many requests at once; none without any."""

    concurrency: int = 16
    idle_seconds: float = 60.0
    most: int = 64
    at_least: int = 0
    shares_gpus: bool = False

    def wanted(self, seen: Seen) -> int:
        return min(self.most, -(-seen.in_flight // self.concurrency))


@dataclass(frozen=True)
class SwapPool(ScaleToZero):
    """The same on GPUs that stay: an idle model makes room for one that is asked for."""

    shares_gpus: bool = True
