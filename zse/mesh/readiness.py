"""What nodes have said of stages: how far a standby is, and what can still be sent to it again."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from zse.mesh.duties import Duties, Duty
    from zse.mesh.messages import StageState
    from zse.mesh.peers import Peers


class Readiness:
    """Remembers what was said last of each stage by each node.

    Until a node has heard of an order, what it said before counts, unless it has been forgotten.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._settled: dict[tuple[tuple[int, int], str], int] = {}
        self._computed: dict[tuple[tuple[int, int], str], int] = {}
        self._log_bases: dict[tuple[tuple[int, int], str], int] = {}

    def done_by(self, duty: Duty, epoch: int) -> int:
        """Return up to which step a standby has what it needs."""
        stage = self._said_of(duty, duty.standby, epoch)
        key = duty.layers, duty.standby
        if stage is not None:
            self._settled[key] = 0 if stage.is_primary else stage.done
        return self._settled.get(key, 0)

    def computed_by(self, duty: Duty, epoch: int) -> int:
        """Return up to which step who computes a stage has computed it."""
        stage = self._said_of(duty, duty.node, epoch)
        if stage is not None and stage.is_primary:
            self._computed[duty.layers, duty.node] = stage.done
        return self._computed.get((duty.layers, duty.node), 0)

    def ready(self, duties: Duties, there: Collection[str], epoch: int) -> set[tuple[int, int]]:
        """Return the layers whose standbys have all that is not in the log of the stage before.

        A log begins anew with who takes a stage over, so for a moment the next stage's standby may
        lack what nobody has. The first stage's log is the front's, which begins never.

        Args:
            duties: Who computes and who stands by.
            there: Standbys that are alive.
            epoch: Of the last order.
        """
        bases: dict[tuple[int, int], int | None] = {duty.layers: 0 for duty in duties}
        for before, duty in pairwise(duties):
            bases[duty.layers] = self._log_base(before, epoch)
        found = set()
        for duty in duties:
            base, done = bases[duty.layers], self.done_by(duty, epoch)
            if duty.standby in there and done and base is not None and done >= base:
                found.add(duty.layers)
        return found

    def forget(self, duty: Duty) -> None:
        """Let nothing count that its nodes said of a stage: they do something else there now."""
        for node in (duty.node, duty.standby):
            for said in (self._settled, self._computed, self._log_bases):
                said.pop((duty.layers, node), None)

    def _log_base(self, duty: Duty, epoch: int) -> int | None:
        """Return the step behind which who computes can send all again; None: it has not said."""
        stage = self._said_of(duty, duty.node, epoch)
        if stage is not None and stage.is_primary:
            self._log_bases[duty.layers, duty.node] = stage.log_base
        return self._log_bases.get((duty.layers, duty.node))

    def _said_of(self, duty: Duty, node: str, epoch: int) -> StageState | None:
        """Return what a node last said of a stage, if it knew the last order."""
        peer = self._peers.by_name.get(node)
        if peer is None or peer.state.epoch != epoch:
            return None
        for stage in peer.state.stages:
            if (stage.first_layer, stage.end_layer) == duty.layers:
                return stage
        return None
