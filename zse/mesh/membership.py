"""Who is there: alive, suspect, dead. A suspicion is looked into, and anybody can come back.

    alive --silent, or its token is gone--> suspect --no peer reaches it either--> dead
      ^---------- heard again --------------'  |                                   |
      '----------------------------------------+----- it joins again --------------'

Pure: told of what happened and of the time, never asks a clock. A connection that ended, which the
system of the other side said, needs no suspicion. Peers are asked as in SWIM (Das et al., 2002), so
that a broken wire of this machine is not taken for the death of another.

A machine with more to do than processors is silent now and then, and dead it is not. Three things
tell it apart (Dadgar, Phillips and Currey, 2017): what this process slept through is nobody's
silence; neither is time in which nobody at all was heard; and who runs late, here or there, and
says so, is waited for somewhat longer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOPELESS_SECONDS = 10.0
"""How long a silent node is waited for whose work nobody else can take, or all of them are."""


class Standing(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    CUT_OFF = "cut off"
    """Peers reach it, this machine does not."""
    DEAD = "dead"


@record
class Patience:
    """How long what is silent is waited for, in seconds."""

    silent_seconds: float = 0.25
    """Until a node is suspect."""
    loaded_silent_seconds: float = 0.5
    """The same where its wire is full, and what it says of itself stands behind other bytes."""
    late_times: float = 2.0
    most_late_seconds: float = 0.25
    """Added where it, or this process, ran late lately: so many times as much, and at most."""
    verdict_seconds: float = 0.12
    """Until peers must have vouched for it; as long again for who was vouched for to be heard."""
    accusation_seconds: float = 0.15
    """Until what one node says of another is believed, while no step is answered."""
    insistence_seconds: float = 2.0
    """The same while steps are answered: they go another way, or the accuser runs late."""
    common_seconds: float = 0.1
    """Without a sign of anybody: from then on it is this machine, or its wire, that is silent."""
    waking_seconds: float = 1.0
    """That who was silent itself is no witness: what it has not heard it slept through."""


class Member:
    """What is known of one node."""

    def __init__(self, now: float) -> None:
        self.standing = Standing.ALIVE
        self.incarnation = 0
        """How often it has joined: what is told of an earlier one is void."""
        self.last_heard = now
        self.suspect_since = 0.0
        self.vouched = False
        self.is_loaded = False
        """Whether it had much to send when it was last heard of."""
        self.late_seconds = 0.0
        """By which it ran late when it was last heard of, as it said itself."""
        self.awake_since = now


class Membership:
    """All nodes that were ever there."""

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self.members: dict[str, Member] = {}
        self.late_seconds = 0.0
        """By which this process ran late lately."""
        self._last_sign: float | None = None
        """When anybody was last heard of."""
        self._accusations: dict[tuple[str, str], float] = {}
        self._answered, self._answered_time = 0, 0.0

    def joined(self, node: str, now: float) -> None:
        member = self.members.setdefault(node, Member(now))
        member.incarnation += 1
        member.standing, member.last_heard, member.vouched = Standing.ALIVE, now, False
        member.awake_since = now

    def heard(
        self, node: str, now: float, *, is_loaded: bool = False, late_seconds: float = 0.0
    ) -> None:
        """Note a sign of life; it ends a suspicion, but not a death: the dead join again.

        Args:
            node: Who was heard of.
            now: When; in the order of time among all nodes.
            is_loaded: Whether it has much to send.
            late_seconds: By which it ran late lately, as it says.
        """
        member = self.members[node]
        if now - member.last_heard > self._patience.silent_seconds / 2:
            member.awake_since = now
        self._end_common_silence(now)
        member.last_heard, member.is_loaded = now, is_loaded
        member.late_seconds = late_seconds
        if member.standing is Standing.SUSPECT:
            member.standing = Standing.ALIVE

    def _end_common_silence(self, now: float) -> None:
        """Somebody speaks: let nobody be blamed for a time in which nobody did."""
        if self._is_common_silence(now):
            assert self._last_sign is not None
            self.overslept(now - self._last_sign, now)
            for member in self.members.values():
                member.awake_since = now
        self._last_sign = max(now, self._last_sign or now)

    def _is_common_silence(self, now: float) -> bool:
        return self._last_sign is not None and now - self._last_sign > self._patience.common_seconds

    def overslept(self, seconds: float, now: float) -> None:
        """Note that this process did not run for a while: nobody could be heard then."""
        if self._last_sign is not None:
            self._last_sign = min(now, self._last_sign + seconds)
        for member in self.members.values():
            member.last_heard = min(now, member.last_heard + seconds)
            member.suspect_since = min(now, member.suspect_since + seconds)

    def ended(self, node: str) -> None:
        """Note that its system closed the connection: the process is gone."""
        if node in self.members:
            self.members[node].standing = Standing.DEAD

    def accused(self, node: str, now: float) -> None:
        """Note that somebody does not hear of it, or that its token is gone."""
        member = self.members.get(node)
        if member is not None and member.standing is Standing.ALIVE:
            member.standing, member.suspect_since = Standing.SUSPECT, now
            member.vouched = False

    def vouched(self, node: str, incarnation: int) -> None:
        """Note that a peer reaches it, as it was when that was asked."""
        member = self.members.get(node)
        if member is not None and member.incarnation == incarnation:
            member.vouched = True

    def newly_suspect(self, now: float) -> list[str]:
        """Suspect who has been silent for too long; return them."""
        silent = [
            name
            for name, member in self.members.items()
            if member.standing is Standing.ALIVE and now - member.last_heard > self._allowed(member)
        ]
        for name in silent:
            self.accused(name, now)
        return silent

    def _allowed(self, member: Member) -> float:
        patience = self._patience
        least = patience.loaded_silent_seconds if member.is_loaded else patience.silent_seconds
        return max(least, patience.silent_seconds + self._lateness(member))

    def _lateness(self, member: Member) -> float:
        """Return what a node is waited for longer, since it runs late, or this process does."""
        late = max(self.late_seconds, member.late_seconds)
        return min(self._patience.late_times * late, self._patience.most_late_seconds)

    def judged(self, now: float) -> list[str]:
        """Return the suspects whose time is over; their standing says what they are.

        None is judged while nobody at all is heard of, unless that is without hope.
        """
        if self._is_common_silence(now) and now - (self._last_sign or now) < HOPELESS_SECONDS:
            return []
        verdict_seconds = self._patience.verdict_seconds
        due = [
            name
            for name, member in self.members.items()
            if member.standing is Standing.SUSPECT
            and now - member.suspect_since > verdict_seconds * (2 if member.vouched else 1)
        ]
        for name in due:
            member = self.members[name]
            member.standing = Standing.CUT_OFF if member.vouched else Standing.DEAD
        return due

    def cut_off(self, silent: Mapping[str, Iterable[str]], now: float, answered: int = 0) -> str:
        """Return a node that is reached from here, and not by another; empty: there is none.

        Who misses several is taken to be cut off itself.

        Args:
            silent: Whom each node sends to and does not hear of.
            now: The time.
            answered: The last step that went through all nodes: while there are more of them, it is
                most likely that one of the two runs late.
        """
        if answered != self._answered:
            self._answered, self._answered_time = answered, now
        current = {
            (accuser, accused)
            for accuser, all_accused in silent.items()
            if self._is_witness(accuser, now)
            for accused in all_accused
            if self._is_witness(accused, now)
        }
        self._accusations = {pair: self._accusations.get(pair, now) for pair in current}
        held = [pair for pair, since in self._accusations.items() if self._holds(pair, since, now)]
        accusers = [accuser for accuser, _ in held]
        for accuser, accused in held:
            return accuser if accusers.count(accuser) > 1 else accused
        return ""

    def _holds(self, pair: tuple[str, str], since: float, now: float) -> bool:
        patience = self._patience
        late = max(self._lateness(self.members[name]) for name in pair)
        without_answers = now - max(since, self._answered_time)
        if without_answers >= patience.accusation_seconds + late:
            return True
        return now - since >= patience.insistence_seconds

    def _is_witness(self, node: str, now: float) -> bool:
        member = self.members.get(node)
        return (
            member is not None
            and member.standing is Standing.ALIVE
            and now - member.awake_since > self._patience.waking_seconds
        )

    def is_doubted(self, node: str, now: float) -> bool:
        """Whether a verdict on a node is to come, unless it is heard of before."""
        member = self.members.get(node)
        if member is None or member.standing is not Standing.ALIVE:
            return member is not None and member.standing is Standing.SUSPECT
        return now - member.last_heard > self._patience.silent_seconds

    def spared(self, node: str, now: float) -> None:
        """Go on suspecting a node whose work nobody else can take."""
        member = self.members[node]
        member.standing, member.suspect_since, member.vouched = Standing.SUSPECT, now, False

    def alive(self) -> list[str]:
        return [n for n, member in self.members.items() if member.standing is Standing.ALIVE]

    def reachable(self, names: Iterable[str]) -> list[str]:
        """Return those that work may be given to: a suspect keeps its work, and gets no other."""
        alive = set(self.alive())
        return [name for name in names if name in alive]
