"""A front's search for nodes that are not there: lost ones that come back, and new ones."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from zse.errors import ZSEError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.finding import Finder
    from zse.mesh.peers import Peers

_LOG = logging.getLogger("zse.mesh")
_LOOK_SECONDS = 0.05
_FIND_LOOKS = 5
"""Looks after which it is asked again where nodes are, which may be a question to a name server."""
_CALL_SECONDS = 0.5


class Rejoining:
    """Connects to whoever is found and is not there.

    Args:
        peers: Those who are.
        finder: Where nodes are.
        avoided: Where nodes are that get no work for a while: they are not called.
    """

    def __init__(self, peers: Peers, finder: Finder, avoided: Callable[[], set[str]]) -> None:
        self._peers, self._finder, self._avoided = peers, finder, avoided
        self.addresses: set[str] = set()
        """All that were ever found."""
        self._called: set[str] = set()
        """Whose answers are awaited."""
        self.problems: dict[str, str] = {}
        """Why nodes that are found are not taken, by their addresses."""

    def thread(self, stop: threading.Event) -> threading.Thread:
        """Return what looks again and again until it is told to stop; it is to be started."""
        return threading.Thread(target=self._run, args=(stop,), name="zse-mesh-rejoin", daemon=True)

    def _run(self, stop: threading.Event) -> None:
        looks = 0
        while not stop.wait(_LOOK_SECONDS):
            if looks % _FIND_LOOKS == 0:
                self.addresses.update(self._finder.addresses())
            looks += 1
            there = {peer.address for peer in self._peers.alive()}
            for address in self.addresses - there - self._avoided() - self._called:
                self._called.add(address)
                # One that is silent for good keeps nobody from one that is back.
                threading.Thread(target=self._call, args=(address, stop), daemon=True).start()

    def _call(self, address: str, stop: threading.Event) -> None:
        try:
            name = self._peers.connect(address, _CALL_SECONDS)
        except ZSEError as error:
            self._note(address, str(error))
        else:
            self.problems.pop(address, None)
            _LOG.info("node %s is there at %s", name, address)
            if stop.is_set():
                self._peers.give_up(name, "closed here")
        finally:
            self._called.discard(address)

    def _note(self, address: str, problem: str) -> None:
        """Say a problem once; it stands in the front's state until the node is there."""
        if self.problems.get(address) != problem:
            self.problems[address] = problem
            _LOG.warning("a node is not taken: %s", problem)
