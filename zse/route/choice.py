"""Which replica gets a request: the cheapest of those that have its prefix and of two by lot.

A request costs a replica its place among the others there, and what of its prompt must be computed
again. Both are counted in requests: ``BLOCKS_A_REQUEST`` blocks that are not in the cache are as
bad as one request more. Two by lot, and not the best of all, because what is known of replicas is
old: several routers that all send to the one that was least busy a second ago make it the busiest
(Mitzenmacher, "The power of two choices in randomized load balancing", 2001).

Replicas that sleep are woken one at a time, and only when those awake have much to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BLOCKS_A_REQUEST = 16
"""Blocks of 128 bytes, half a thousand tokens, that cost as much as a request that is there."""
WAKE_BUSYNESS = 16.0
"""Of the least busy one that is awake, from which on another is woken."""


class Candidate(Protocol):
    """A replica, as far as the choice looks at it."""

    @property
    def key(self) -> str:
        """Its name in the table of prefixes."""

    @property
    def busyness(self) -> float:
        """Requests that stand before the next one."""

    @property
    def is_asleep(self) -> bool:
        """Whether it must be woken first."""


@record
class Choice:
    """Who was chosen, and how much of the prompt it is likely to have."""

    index: int
    num_matched: int


def choose(
    candidates: Sequence[Candidate],
    *,
    num_blocks: int,
    matched: Mapping[str, int],
    draw: Callable[[int], int],
) -> Choice:
    """Choose among replicas that take requests; there is at least one.

    Args:
        num_blocks: Of the prompt.
        matched: Blocks of it that replicas have, by their keys.
        draw: Returns a number below the one it is given, by lot.
    """
    among = _awake_enough(candidates)
    drawn = _two_of(among, draw)
    holders = {i for i in among if matched.get(candidates[i].key)} if matched else set()

    def cost(index: int) -> float:
        each = candidates[index]
        num_missing = num_blocks - matched.get(each.key, 0)
        return each.busyness + num_missing / BLOCKS_A_REQUEST

    best = min([*drawn, *sorted(holders - set(drawn))], key=cost)
    return Choice(index=best, num_matched=matched.get(candidates[best].key, 0))


def _awake_enough(candidates: Sequence[Candidate]) -> Sequence[int]:
    """Return those who may be asked: sleepers only where all others are busy, and then one."""
    awake = [i for i, each in enumerate(candidates) if not each.is_asleep]
    if len(awake) == len(candidates):
        return awake
    if awake and min(candidates[i].busyness for i in awake) < WAKE_BUSYNESS:
        return awake
    asleep = [i for i, each in enumerate(candidates) if each.is_asleep]
    # One that is being woken has requests already: it gets the others too, until it is busy.
    waking = [i for i in asleep if 0 < candidates[i].busyness < WAKE_BUSYNESS]
    return waking[:1] or [min(asleep, key=lambda i: candidates[i].busyness)]


def _two_of(among: Sequence[int], draw: Callable[[int], int]) -> tuple[int, ...]:
    if len(among) == 1:
        return (among[0],)
    first = draw(len(among))
    second = draw(len(among) - 1)
    return among[first], among[second + (second >= first)]
