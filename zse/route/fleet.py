"""The replicas of a router: who they are now, who gets a request, who waits until one is there."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING

from zse.errors import LoadingError, OverloadedError
from zse.records import record
from zse.route.choice import choose
from zse.route.prefixes import PrefixTable
from zse.route.replicas import Replica, State, may_rest
from zse.route.upstream import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.route.addresses import Address
    from zse.route.counts import Counts
    from zse.route.prompt import Prompt
    from zse.route.upstream import Upstream
    from zse.route_options import RouteOptions

LOG = logging.getLogger("zse.route")
_RETRY_SECONDS = 2.0
_GRACE_SECONDS = 10.0
"""For a replica that is down to be started again; requests wait for it, as long as others wait."""


class NoReplicaError(LoadingError):
    """No replica takes requests now."""

    error_code = "no_replica"
    retry_after_seconds = _RETRY_SECONDS


class Member:
    """A replica, the connections to it, and the answers that come from it."""

    def __init__(self, address: Address, *, connect_seconds: float) -> None:
        self.address = address
        self.replica = Replica(address.name)
        self.pool = Pool(address, connect_seconds=connect_seconds)
        self.is_listed = True
        """Whether it is still named by somebody."""
        self.answering: set[Upstream] = set()

    def cut_silent(self, since: float) -> None:
        """End the answers of which nothing has come since a moment: the replica hangs."""
        for connection in list(self.answering):
            if connection.heard_at < since:
                connection.give_up()


@record
class Lot:
    """A replica that was chosen for a request, and is counted with it until ``Fleet.give_back``."""

    member: Member
    num_matched: int
    """Blocks of its prompt that the replica is likely to have."""


class Fleet:
    """Chooses, counts, and lets wait.

    Args:
        clock: Seconds that only grow.
        draw: Returns a number below the one it is given, by lot.
    """

    def __init__(
        self,
        options: RouteOptions,
        counts: Counts,
        *,
        clock: Callable[[], float],
        draw: Callable[[int], int] = random.randrange,
    ) -> None:
        self.options = options
        self.counts = counts
        self.members: dict[str, Member] = {}
        self.is_woken_from_outside = bool(options.wake_url)
        self._table = PrefixTable(options.prefix_blocks)
        self._clock = clock
        self._draw = draw
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_remembered(self) -> int:
        """Blocks of prompts of which it is known who has them."""
        return len(self._table)

    @property
    def replicas(self) -> list[Replica]:
        return [each.replica for each in self.members.values()]

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered, or wait with reason."""
        return self.is_woken_from_outside or any(r.state is State.READY for r in self.replicas)

    # --- who they are  ----------------------------------------------------------------------------

    def set_addresses(self, addresses: Iterable[Address]) -> tuple[list[Member], list[Member]]:
        """Take in who is new and let go who is named no more; return both.

        Who is let go keeps the requests that it has.
        """
        wanted = {address.name: address for address in addresses}
        gone = [self.members.pop(name) for name in list(self.members) if name not in wanted]
        for member in gone:
            member.is_listed = False
            member.pool.close()
        new = []
        for name, address in wanted.items():
            if name not in self.members:
                made = Member(address, connect_seconds=self.options.connect_seconds)
                self.members[name] = made
                new.append(made)
        for member in [*new, *gone]:
            what = "named" if member.is_listed else "named no more"
            LOG.info("a replica is %s", what, extra={"replica": member.replica.name})
        return new, gone

    def close(self) -> None:
        """Close the connections that wait for requests."""
        for member in self.members.values():
            member.pool.close()

    # --- who gets a request  ----------------------------------------------------------------------

    async def take(self, prompt: Prompt, *, tried: set[str], until: float) -> Lot | None:
        """Return a replica for a request, waiting for one where none is there.

        Args:
            tried: Names of those that will not do.
            until: On the fleet's clock, when it is no use any more.

        Returns:
            None where all that take requests were tried.

        Raises:
            NoReplicaError: None came in time, or none is likely to come.
            OverloadedError: Too many wait already.
        """
        lot = None if self._waiting else self._choose(prompt, tried)
        while lot is None:
            if tried and any(self._takes(m) for m in self.members.values()):
                self._wake_next()  # what this request will not have may be the next one's
                return None
            self._refuse_vain_wait()
            await self._wait(until)
            lot = self._choose(prompt, tried)
        self._wake_next()
        return lot

    def give_back(self, lot: Lot) -> None:
        """Note that a request is over at its replica."""
        lot.member.replica.in_flight -= 1
        if self._waiting:
            self._wake_next()

    def remember(self, lot: Lot, prompt: Prompt) -> None:
        """Note that a replica has read a prompt."""
        if prompt.digests and self.options.prefix_blocks:
            self._table.note(prompt.digests, lot.member.replica.key)

    def _takes(self, member: Member) -> bool:
        limit = self.options.max_per_replica
        return member.replica.takes_requests(self._clock(), limit=limit)

    def _choose(self, prompt: Prompt, tried: set[str]) -> Lot | None:
        members = [
            member
            for member in self.members.values()
            if member.replica.name not in tried and self._takes(member)
        ]
        if not members:
            return None
        choice = choose(
            [member.replica for member in members],
            num_blocks=len(prompt.digests),
            matched=self._table.match(prompt.digests),
            draw=self._draw,
        )
        chosen = members[choice.index]
        chosen.replica.in_flight += 1
        self.counts.matched(len(prompt.digests), choice.num_matched)
        return Lot(member=chosen, num_matched=choice.num_matched)

    # --- who waits  -------------------------------------------------------------------------------

    def news(self) -> None:
        """Have somebody who waits look again: a replica may be there."""
        self._wake_next()

    def _refuse_vain_wait(self) -> None:
        """Raise where nobody is coming."""
        now = self._clock()
        is_coming = self.is_woken_from_outside or any(
            each.state in (State.UNKNOWN, State.UNREADY)
            or (each.state is State.READY and not each.is_drained)
            or now < each.rests_until
            or (each.state is State.DOWN and now - each.down_since < _GRACE_SECONDS)
            for each in self.replicas
        )
        if not is_coming:
            raise NoReplicaError(f"None of {len(self.members)} replicas takes requests.")
        if len(self._waiting) >= self.options.max_waiting:
            error = OverloadedError(f"{len(self._waiting)} requests wait for a replica already.")
            error.retry_after_seconds = _RETRY_SECONDS
            raise error

    async def _wait(self, until: float) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        goes_on = False
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())):
                await mine
            goes_on = True
        except TimeoutError:
            raise NoReplicaError("No replica came in time.") from None
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not goes_on:
                self._wake_next()  # it was woken and leaves, cancelled or too late

    def _wake_next(self) -> None:
        while self._waiting and any(map(self._takes, self.members.values())):
            mine = self._waiting.popleft()
            if not mine.done():
                mine.set_result(None)
                return

    # --- how they do  -----------------------------------------------------------------------------

    def note_success(self, member: Member) -> None:
        member.replica.succeeded()

    def note_failure(self, member: Member) -> None:
        """Note a request that a replica lost; one that loses many rests."""
        replica, options = member.replica, self.options
        replica.failed()
        now = self._clock()
        is_too_much = options.eject_after and replica.num_failures >= options.eject_after
        if is_too_much and may_rest(self.replicas, now):
            replica.rest(now, options.eject_seconds)
            self.counts.ejections += 1
            LOG.warning("a replica rests: it failed too often", extra={"replica": replica.name})
