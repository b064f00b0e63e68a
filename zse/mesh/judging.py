"""A front's judgement of nodes: beats are compared with patience, peers asked, the lost let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.mesh.membership import Membership, Patience
from zse.mesh.messages import AskLook, Look, decode
from zse.mesh.wakefulness import Wakefulness

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.finding import Finder
    from zse.mesh.peers import Peers

_VOUCHERS = 3
_OVERSLEPT_SECONDS = 0.05
"""Between two looks, of which there are a hundred in a second."""
_HOPELESS_SECONDS = 10.0
"""How long a silent node is waited for whose work nobody else can take."""


class Judge:
    """Says who is lost.

    Args:
        peers: The nodes; the links of those that are lost are ended.
        finder: Has tokens of nodes, or none.
        patience: With nodes that are silent.
        can_lose: Whether others have all that a node computes.
    """

    def __init__(
        self,
        peers: Peers,
        finder: Finder,
        patience: Patience | None,
        can_lose: Callable[[str], bool],
    ) -> None:
        self.membership = Membership(patience)
        self._peers, self._finder, self._can_lose = peers, finder, can_lose
        self._tokens: set[str] = set()
        self._wakefulness = Wakefulness(_OVERSLEPT_SECONDS)

    def look(self, now: float) -> float:
        """Take note of what was heard until now, and give up who is lost.

        Returns:
            The seconds before it in which this process did not run.
        """
        peers, membership = self._peers, self.membership
        slept = self._wakefulness.look(now)
        if slept:
            membership.overslept(slept, now)
        for peer in peers.alive():
            member = membership.members.get(peer.name)  # None: it is just coming
            if member is not None and peer.state_time > member.last_heard:
                is_loaded = bool(peer.state.sending)
                membership.heard(peer.name, peer.state_time, is_loaded=is_loaded)
        for name in [*membership.newly_suspect(now), *self._without_token(now)]:
            self._ask_vouchers(name)
        for name in membership.judged(now):
            standing = membership.members[name].standing
            silent = now - membership.members[name].last_heard
            if silent < _HOPELESS_SECONDS and not self._can_lose(name):
                membership.spared(name, now)
            else:
                peers.give_up(name, f"silent for {silent:.2f} s: {standing}")
        reports = {peer.name: peer.state.silent for peer in peers.alive()}
        missed = membership.cut_off(reports, now)
        if missed and self._can_lose(missed):
            peers.give_up(missed, "its neighbours do not hear of it")
        return slept

    def _without_token(self, now: float) -> list[str]:
        """Suspect the nodes whose tokens are gone; return them."""
        if not self._finder.has_tokens:
            return []
        tokens = set(self._finder.addresses())
        gone, self._tokens = self._tokens - tokens, tokens
        names = [peer.name for peer in self._peers.alive() if peer.address in gone]
        for name in names:
            self.membership.accused(name, now)
        return names

    def _ask_vouchers(self, suspect: str) -> None:
        peer, member = self._peers.by_name[suspect], self.membership.members[suspect]
        ask = AskLook(address=peer.address, seconds=0.1)
        for voucher in [one for one in self._peers.alive() if one.name != suspect][:_VOUCHERS]:
            future, incarnation = voucher.ask(ask), member.incarnation

            def tell(done: Any, incarnation: int = incarnation) -> None:
                if done.exception() is None and decode(done.result(), Look).is_there:
                    self.membership.vouched(suspect, incarnation)

            future.add_done_callback(tell)
