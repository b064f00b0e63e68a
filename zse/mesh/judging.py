"""A front's judgement of nodes: beats are compared with patience, peers asked, the lost let go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.mesh.membership import HOPELESS_SECONDS, Membership, Patience
from zse.mesh.messages import AskLook, Look, decode
from zse.mesh.wakefulness import Wakefulness

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.finding import Finder
    from zse.mesh.peers import Peer, Peers

_VOUCHERS = 3
_LOOK_SECONDS, _OVERSLEPT_SECONDS = 0.01, 0.05
"""Between two looks, and what is more than late."""
_UNREAD_SECONDS = 0.1
"""After which it is looked whether a node that is not heard of has said something nevertheless."""


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
        self._wakefulness = Wakefulness(_LOOK_SECONDS, _OVERSLEPT_SECONDS)

    def look(self, now: float, answered: int) -> float:
        """Take note of what was heard until now, and give up who is lost.

        Args:
            now: The time.
            answered: The last step that all nodes have computed.

        Returns:
            The seconds before it in which this process did not run.
        """
        peers, membership = self._peers, self.membership
        slept = self._wakefulness.look(now)
        if slept:
            membership.overslept(slept, now)
        membership.late_seconds = self._wakefulness.late_seconds(now)
        self._note_signs(now)
        for name in [*membership.newly_suspect(now), *self._without_token(now)]:
            self._ask_vouchers(name)
        for name in membership.judged(now):
            standing = membership.members[name].standing
            silent = now - membership.members[name].last_heard
            if silent < HOPELESS_SECONDS and not self._can_lose(name):
                membership.spared(name, now)
            else:
                peers.give_up(name, f"silent for {silent:.2f} s: {standing}")
        reports = {peer.name: peer.state.silent for peer in peers.alive()}
        missed = membership.cut_off(reports, now, answered)
        if missed and self._can_lose(missed):
            peers.give_up(missed, "its neighbours do not hear of it")
        return slept

    def _note_signs(self, now: float) -> None:
        """Note who has spoken, in the order in which they did."""
        signs = sorted((_last_sign(peer, now), peer.name) for peer in self._peers.alive())
        for time, name in signs:
            member = self.membership.members.get(name)  # None: it is just coming
            if member is not None and time > member.last_heard:
                state = self._peers.by_name[name].state
                self.membership.heard(
                    name,
                    time,
                    is_loaded=bool(state.sending),
                    late_seconds=state.late_milliseconds / 1e3,
                )

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


def _last_sign(peer: Peer, now: float) -> float:
    """Return when a node last said something; what waits to be read here, it has said."""
    heard = peer.link.last_heard
    return now if now - heard > _UNREAD_SECONDS and peer.link.has_unread else heard
