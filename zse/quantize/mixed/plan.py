"""Which scheme each weight gets under a budget of bytes.

Greedy along each weight's convex hull: the step that saves most error a byte is taken first. What
an exact solution could do better is less than what the last step that did not fit would save, one
weight of hundreds, and the errors are estimates; so the time of one is better spent on measuring.
"""

from __future__ import annotations

import heapq
from math import prod
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.schemes import stored_bytes
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from zse.format.layout import PlannedTensor


@record
class Budget:
    """How large the weights may be that schemes are chosen for.

    Raises:
        UsageError: Both are given, or one is not above 0.
    """

    bits: float | None = None
    """Mean bits of a weight of linear layers, scales counted."""
    gib: float | None = None
    """GiB of the whole file."""

    def __post_init__(self) -> None:
        given = [value for value in (self.bits, self.gib) if value is not None]
        if len(given) != 1:
            raise UsageError("--target-bits and --target-gib exclude each other: give one")
        if not 0 < given[0] < float("inf"):
            raise UsageError(f"a target of {given[0]} is none: give a number above 0")

    def to_json(self) -> dict[str, float]:
        """Return what was asked for, for a file's provenance."""
        return {"bits": self.bits} if self.bits is not None else {"gib": self.gib or 0.0}


@record
class Option:
    """A way to store a weight."""

    planned: PlannedTensor
    error: float
    """Share of the squares of its outputs that is lost."""

    @property
    def length_bytes(self) -> int:
        return length_bytes(self.planned)

    @property
    def bits(self) -> float:
        """Of a weight, scales counted."""
        return bits_of(self.planned)


@record
class MixedPlan:
    """The way each weight is stored, by name."""

    chosen: Mapping[str, Option]

    @property
    def length_bytes(self) -> int:
        return sum(option.length_bytes for option in self.chosen.values())

    @property
    def bits(self) -> float:
        """Mean of all weights."""
        return 8 * self.length_bytes / num_weights(one.planned for one in self.chosen.values())

    @property
    def error(self) -> float:
        """Mean over matrices of what is lost of their outputs."""
        return sum(option.error for option in self.chosen.values()) / len(self.chosen)


def length_bytes(planned: PlannedTensor) -> int:
    """Return what a weight takes in a file, scales counted."""
    return stored_bytes(planned.scheme, planned.shape, planned.group_size)


def bits_of(planned: PlannedTensor) -> float:
    """Return the bits of one number, scales counted."""
    return 8 * length_bytes(planned) / prod(planned.shape)


def room_above(smallest: Sequence[PlannedTensor], most_bytes: int) -> int:
    """Return what is left of some bytes when each weight is stored as small as it can be.

    Raises:
        UsageError: They do not suffice for that.
    """
    least = sum(map(length_bytes, smallest))
    if least > most_bytes:
        bits = min(map(bits_of, smallest))
        raise UsageError(
            f"the target leaves {max(most_bytes, 0):,} bytes for weights that take {least:,} at "
            "least",
            hint=f"Give a larger target: the fewest bits of a scheme here are {bits:.2f} a weight.",
        )
    return most_bytes - least


def choose(options: Sequence[Sequence[Option]], most_bytes: int) -> MixedPlan:
    """Choose an option for each weight, so that all together fit and lose least.

    Args:
        options: Of each weight the ways to store it.
        most_bytes: Of all of them.

    Raises:
        UsageError: The smallest options do not fit.
    """
    hulls = [list(_hull(each)) for each in options]
    taken = [0] * len(hulls)
    room = room_above([hull[0].planned for hull in hulls], most_bytes)
    waiting = [step for i, hull in enumerate(hulls) for step in _step(hull, 0, i)]
    heapq.heapify(waiting)
    while waiting:
        _, index, size = heapq.heappop(waiting)
        if size <= room:
            room -= size
            taken[index] += 1
            for step in _step(hulls[index], taken[index], index):
                heapq.heappush(waiting, step)
    chosen = (hull[place] for hull, place in zip(hulls, taken, strict=True))
    return MixedPlan(chosen={option.planned.name: option for option in chosen})


def no_worse_than_one_for_all(
    options: Sequence[Sequence[Option]], most_bytes: int
) -> list[list[Option]]:
    """Leave out what loses more of a weight than the best scheme for all of them that fits.

    Errors of a matrix's outputs are no measure of what a large one costs beside a small one: where
    feedback makes good most of what rounding loses, a plan that takes bits from large matrices for
    others was worse than one scheme for all of them (docs/quantization.md).
    """
    forms = [
        {(one.planned.scheme, one.planned.group_size): one for one in each} for each in options
    ]
    everywhere = set.intersection(*map(set, forms)) if forms else set()
    fitting = [
        (sum(each[form].error for each in forms), form)
        for form in everywhere
        if sum(each[form].length_bytes for each in forms) <= most_bytes
    ]
    if not fitting:
        return [list(each) for each in options]
    _, best = min(fitting)
    return [
        [one for one in each if one.error <= own[best].error]
        for each, own in zip(options, forms, strict=True)
    ]


def num_weights(planned: Iterable[PlannedTensor]) -> int:
    """Return of how many numbers the weights are made."""
    return sum(prod(one.shape) for one in planned)


def _step(hull: Sequence[Option], place: int, index: int) -> Iterator[tuple[float, int, int]]:
    """Yield the step to the next option, if there is one: minus what it saves a byte, and bytes."""
    if place + 1 < len(hull):
        size = hull[place + 1].length_bytes - hull[place].length_bytes
        yield (hull[place + 1].error - hull[place].error) / size, index, size


def _hull(options: Sequence[Option]) -> Iterator[Option]:
    """Yield the options that are best at some price of a byte, the smallest first."""
    ordered = sorted(options, key=lambda option: (option.length_bytes, option.error))
    current = ordered[0]
    yield current
    while better := [
        one
        for one in ordered
        if one.length_bytes > current.length_bytes and one.error < current.error
    ]:
        start = current
        current = max(
            better,
            key=lambda one: (start.error - one.error) / (one.length_bytes - start.length_bytes),
        )
        yield current
