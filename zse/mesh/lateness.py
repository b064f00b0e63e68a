"""Whom a late step waits for, and whether a standby is fed: from what nodes said of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from zse.mesh.duties import Duties
    from zse.mesh.peers import Peer, Peers

_LATE_SECONDS = 0.06
"""By which the beats of a node whose wire is slow come later than those of others."""
_STALE_SECONDS = 1.0
"""After which what a node said of itself is no longer taken to be so."""
_GAP_SECONDS = 3.0
"""How long a step that was lost may come again: each order brings what anybody remembers."""
_FEED_SECONDS = 5.0
"""How long nothing may come to a standby that lacks something before all is sent to it again."""


def is_at_work(peers: Iterable[Peer], step: int, epoch: int, now: float) -> bool:
    """Whether a node computes a step, or rows of a node that had it are on their way."""
    states = [
        peer.state
        for peer in peers
        if now - peer.state_time < _STALE_SECONDS and peer.state.epoch == epoch
    ]
    return any("rows" in state.sending or state.computing == step for state in states)


def holder_of(duties: Duties, peers: Peers, step: int, now: float) -> str:
    """Return the node that a step waits for: the first that has not computed it.

    Or the one before, where less is heard of that: what it sends is slow, then.
    """
    before = ""
    for duty in duties:
        peer = peers.by_name[duty.node]
        done = {(s.first_layer, s.end_layer): s.done for s in peer.state.stages}
        if done.get(duty.layers, 0) < step:
            age = now - peer.state_time
            is_later = before and now - peers.by_name[before].state_time > age + _LATE_SECONDS
            return before if is_later else duty.node
        before = duty.node
    return before  # its tokens have not come


class Gap:
    """Remembers since when the next step that a stage needs has been sent by nobody."""

    def __init__(self) -> None:
        self._step, self._since = 0, 0.0

    def is_hopeless(self, duties: Duties, peers: Peers, step: int, now: float) -> bool:
        """Whether later steps came to a stage and one that it needs for this one did not.

        Order after order: else it is only late.
        """
        missing = [
            stage.missing
            for duty in duties
            for stage in peers.by_name[duty.node].state.stages
            if (stage.first_layer, stage.end_layer) == duty.layers and stage.is_primary
        ]
        first = min((one for one in missing if 0 < one <= step), default=0)
        if not first or self._step != first:
            self._step, self._since = first, now
        return bool(self._step) and now - self._since > _GAP_SECONDS


class Feeding:
    """Remembers when something last came to a standby that lacked something."""

    def __init__(self) -> None:
        self._fed: dict[tuple[str, int], int] = {}
        self._time = 0.0

    def is_starved(
        self,
        duties: Duties,
        ready: Collection[tuple[int, int]],
        peers: Iterable[Peer],
        *,
        order_time: float,
        now: float,
    ) -> bool:
        """Whether a standby lacks something, and nothing has come to any for a while."""
        lacking = {d.layers: d.standby for d in duties if d.standby and d.layers not in ready}
        fed = {
            (peer.name, stage.first_layer): stage.num_fed
            for peer in peers
            for stage in peer.state.stages
            if lacking.get((stage.first_layer, stage.end_layer)) == peer.name
        }
        if fed != self._fed:
            self._fed, self._time = fed, now
        return bool(lacking) and now - max(order_time, self._time) > _FEED_SECONDS
