"""What a model costs a month on each platform: always there, or asleep while nobody asks.

Requests come by themselves, at random (a Poisson process). A machine that sleeps when idle is up
for as long as each request keeps it: the request's own time and the idle window behind it. So the
time that it is up is a busy period of the M/D/infinity queue, ``(exp(rate * kept) - 1) / rate``
(Takacs, 1962), and between two of them it is asleep for ``1 / rate`` on average.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zse.deploy.machines import load_catalog
from zse.deploy.tables import read_table
from zse.errors import UsageError
from zse.models.memory import MemoryEstimate
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.deploy.machines import Machine

HOURS_A_MONTH = 730
MOST_BUSY = 0.7
"""Share of its places that a machine may have taken on average, so that requests seldom queue."""
UNKNOWN_BEFORE_SECONDS = 30.0
"""Taken where no source says what a platform adds; the answer is marked."""
_MOST_EXPONENT = 500.0


@record
class Traffic:
    """What is asked of a model.

    Raises:
        UsageError: A number makes no sense.
    """

    requests_per_hour: float
    request_seconds: float
    """From a request's arrival to the end of its answer, with the model there."""
    concurrency: float = 8.0
    """Requests that one machine answers at once."""
    wake_seconds: float = 0.7
    """From the process's start to its first token."""

    def __post_init__(self) -> None:
        for name in ("requests_per_hour", "request_seconds", "concurrency"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}, expected a number above 0")
        if not 0 <= self.wake_seconds < math.inf:
            raise UsageError(f"wake_seconds is {self.wake_seconds}, expected 0 or more")

    @property
    def per_second(self) -> float:
        return self.requests_per_hour / 3600

    @property
    def num_machines(self) -> int:
        """Machines that are busy all the time, at most as much as ``MOST_BUSY``."""
        places = self.concurrency * MOST_BUSY
        return max(1, math.ceil(self.per_second * self.request_seconds / places))


@record
class Waking:
    """How one platform wakes a machine, and lets it sleep."""

    platform: str
    title: str
    idle_seconds: float
    """Where nobody says otherwise."""
    least_idle_seconds: float
    most_idle_seconds: float
    bills_waking: bool
    """Whether the time before the model is ready is paid for."""
    source: str
    before_seconds: float | None = None
    """Before the container's process runs; None where no source says it."""

    @property
    def is_known(self) -> bool:
        return self.before_seconds is not None

    def allowed(self, idle_seconds: float) -> float:
        """Return the idle window nearest to one that is wanted."""
        return min(max(idle_seconds, self.least_idle_seconds), self.most_idle_seconds)


@record
class Sleepy:
    """A machine that sleeps when idle, on average."""

    up_share: float
    """Of the time that is paid for."""
    slow_share: float
    """Of the requests that wait for a wake."""
    wake_seconds: float
    """What the first of them waits."""
    idle_seconds: float


@record
class Way:
    """One way to have the model, and what it costs."""

    platform: str
    title: str
    machine: str
    hardware: str
    usd_per_hour: float
    prices_of: str
    num_machines: int
    is_known: bool
    """Whether a source says what the platform adds to a start."""
    sleepy: Sleepy | None
    """None where it is always there."""

    @property
    def usd_per_month(self) -> float:
        share = 1.0 if self.sleepy is None else self.sleepy.up_share
        return self.usd_per_hour * HOURS_A_MONTH * self.num_machines * share

    @property
    def slow_share(self) -> float:
        return 0.0 if self.sleepy is None else self.sleepy.slow_share


def wakings() -> tuple[Waking, ...]:
    """Return the platforms of which it is known how they wake."""
    table = read_table("waking")
    return tuple(
        Waking(platform=name, **row) for name, row in table.items() if isinstance(row, dict)
    )


def sleepy_machine(traffic: Traffic, waking: Waking, idle_seconds: float) -> Sleepy:
    """Return how a machine does that sleeps when nobody has asked for ``idle_seconds``."""
    rate, wake = traffic.per_second, _wake_seconds(traffic, waking)
    exponent = min(rate * (traffic.request_seconds + idle_seconds), _MOST_EXPONENT)
    up = math.expm1(exponent) / rate
    cycle = 1 / rate + wake + up
    paid = up + (wake if waking.bills_waking else 0.0)
    return Sleepy(
        up_share=paid / cycle,
        slow_share=(1 + rate * wake) / (rate * cycle),
        wake_seconds=wake,
        idle_seconds=idle_seconds,
    )


def idle_for(traffic: Traffic, waking: Waking, most_slow_share: float) -> float | None:
    """Return the shortest idle window that keeps the share of slow requests within a bound.

    None where the platform allows none that is long enough.
    """
    if not 0 < most_slow_share <= 1:
        raise UsageError(f"the share of slow requests is {most_slow_share}, expected 0 to 1")
    rate, wake = traffic.per_second, _wake_seconds(traffic, waking)
    # slow = (1 + rate*wake) / (exp(rate*kept) + rate*wake), solved for what is kept
    power = (1 + rate * wake) / most_slow_share - rate * wake
    kept = math.log(max(power, 1.0)) / rate
    idle = max(waking.least_idle_seconds, kept - traffic.request_seconds)
    return idle if idle <= waking.most_idle_seconds else None


def ways(
    traffic: Traffic,
    *,
    memory_bytes: int,
    idle_seconds: float | None = None,
    most_slow_share: float | None = None,
    platforms: Iterable[str] = (),
) -> list[Way]:
    """Return the ways to have a model, the cheapest first.

    Args:
        memory_bytes: What it takes on a GPU, the driver aside.
        idle_seconds: How long an idle machine is kept; else as each platform does by itself.
        most_slow_share: Requests that may wait for a wake, 0 to 1; it decides the idle window.
        platforms: Only these; all when empty.

    Raises:
        UsageError: A platform is not known, or a number makes no sense.
    """
    known = {waking.platform: waking for waking in wakings()}
    wanted = tuple(platforms) or tuple(known)
    if unknown := [name for name in wanted if name not in known]:
        names = ", ".join(known)
        raise UsageError(f"no waking of {unknown[0]!r} is known", hint=f"Choose among {names}.")
    found = []
    for name in wanted:
        machine = _cheapest(name, memory_bytes)
        if machine is not None:
            found += _ways_on(known[name], machine, traffic, idle_seconds, most_slow_share)
    return sorted(found, key=lambda way: way.usd_per_month)


def _ways_on(
    waking: Waking,
    machine: Machine,
    traffic: Traffic,
    idle_seconds: float | None,
    most_slow_share: float | None,
) -> list[Way]:
    catalog = load_catalog(waking.platform)

    def way(sleepy: Sleepy | None) -> Way:
        return Way(
            platform=waking.platform,
            title=waking.title,
            machine=machine.name,
            hardware=machine.hardware,
            usd_per_hour=machine.usd_per_hour or 0.0,
            prices_of=catalog.prices_of,
            num_machines=traffic.num_machines,
            is_known=waking.is_known,
            sleepy=sleepy,
        )

    always = way(None)
    if most_slow_share is not None:
        idle = idle_for(traffic, waking, most_slow_share)
    else:
        idle = waking.allowed(waking.idle_seconds if idle_seconds is None else idle_seconds)
    if idle is None or traffic.num_machines > 1:
        return [always]  # with so many requests none of several machines is ever idle for long
    return [way(sleepy_machine(traffic, waking, idle)), always]


def _cheapest(platform: str, memory_bytes: int) -> Machine | None:
    """Return the cheapest GPU of a platform that has the room and a price."""
    need = MemoryEstimate(
        stored_bytes=memory_bytes, weights_bytes=memory_bytes, kv_bytes=0, overhead_bytes=0
    )
    fitting = [
        machine
        for machine in load_catalog(platform).machines
        if machine.is_gpu and machine.usd_per_hour is not None and machine.holds(need)
    ]
    return min(fitting, key=lambda machine: machine.usd_per_hour or 0.0, default=None)


def _wake_seconds(traffic: Traffic, waking: Waking) -> float:
    before = waking.before_seconds
    return traffic.wake_seconds + (UNKNOWN_BEFORE_SECONDS if before is None else before)
