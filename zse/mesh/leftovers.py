"""Stages that nodes have open and nobody counts on any more: their memory is given back.

A stage goes from one standby to another, or back to a node that has returned; whoever had it open
would keep its weights and its pool of keys and values for good, and in the end the whole model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.mesh.messages import AskClose

if TYPE_CHECKING:
    from zse.mesh.duties import Duties
    from zse.mesh.peers import Peers


class Leftovers:
    """Asks nodes to close what they need not have; for one thread at a time.

    Args:
        peers: The nodes, with what they said last of themselves.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._asked: set[tuple[int, str, tuple[int, int]]] = set()

    def close(self, duties: Duties, epoch: int) -> None:
        """Have closed what no duty names; only of nodes that know the last order.

        Not while a stage is being opened: it is nobody's until the next order names it.
        """
        self._asked = {key for key in self._asked if key[0] == epoch}
        held = {(who, duty.layers) for duty in duties for who in (duty.node, duty.standby)}
        for peer in self._peers.alive():
            if peer.state.epoch != epoch:
                continue
            for stage in peer.state.stages:
                layers = stage.first_layer, stage.end_layer
                if (peer.name, layers) in held or (epoch, peer.name, layers) in self._asked:
                    continue
                self._asked.add((epoch, peer.name, layers))
                peer.ask(AskClose(*layers))
