"""The nodes as a front end sees them: a link each, what they said last, and questions to them."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from zse import __version__
from zse.errors import MeshError
from zse.mesh.frames import Frame, Kind
from zse.mesh.handshake import Introduction, caller_of
from zse.mesh.link import Link
from zse.mesh.messages import AskFacts, Done, Facts, NodeState, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.mesh.messages import Ask

Answer = TypeVar("Answer")
ASK_SECONDS = 10.0


class Peer:
    """One node, while its link lives."""

    def __init__(self, address: str, link: Link, facts: Facts | None = None) -> None:
        self.address = address
        self.link = link
        self.facts = facts
        self.state = NodeState()
        self.state_time = 0.0
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[bytes]] = {}

    @property
    def name(self) -> str:
        return self.link.peer.node

    def ask(self, ask: Ask) -> Future[bytes]:
        """Ask something; the future has the answer's bytes, or fails with the link."""
        number, future = next(self._numbers), Future[bytes]()
        self._asked[number] = future
        if self.link.is_closed:
            self.fail("its link has ended")
        self.link.send(Frame(kind=Kind.ASK, step=number, head=encode(ask)))
        return future

    def answer(self, ask: Ask, kind: type[Answer], seconds: float = ASK_SECONDS) -> Answer:
        """Ask something and wait.

        Raises:
            MeshError: There is no answer in time, or the answer says why there is none.
        """
        try:
            data = self.ask(ask).result(seconds)
        except TimeoutError:
            raise MeshError(f"node {self.name} did not answer in {seconds:g} s") from None
        if kind is not Done:
            try:
                return decode(data, kind)
            except MeshError:
                pass  # it may say what went wrong
        done = decode(data, Done)
        if done.error or kind is not Done:
            raise MeshError(done.error or "a node answered something else", hint=done.hint)
        return done  # type: ignore[return-value]

    def answered(self, number: int, data: bytes) -> None:
        future = self._asked.pop(number, None)
        if future is not None:
            future.set_result(data)

    def fail(self, reason: str) -> None:
        """Let nobody wait for an answer any more."""
        for number in list(self._asked):
            future = self._asked.pop(number, None)
            if future is not None:
                future.set_exception(MeshError(f"node {self.name} cannot answer: {reason}"))


class Peers:
    """All nodes that a front end is connected to.

    Args:
        secret: Of the mesh.
        on_tokens: Told of steps that a last stage has computed.
        on_change: Told of nodes that came (True) or whose link ended (False).
        purpose: ``front``, or ``survey`` for who only asks.
    """

    def __init__(
        self,
        secret: bytes,
        on_tokens: Callable[[Frame], None],
        on_change: Callable[[str, bool, str], None],
        purpose: str = "front",
    ) -> None:
        self._call = caller_of(secret, Introduction("", purpose, __version__))
        self._is_front = purpose == "front"
        self._on_tokens, self._on_change = on_tokens, on_change
        self._lock = threading.Lock()
        self.by_name: dict[str, Peer] = {}

    def connect(self, address: str, seconds: float) -> str:
        """Call a node, if it is not there already; return its name.

        Raises:
            ZSEError: It cannot be reached, does not know the secret, or has another's name.
        """
        for name, peer in list(self.by_name.items()):
            if peer.address == address and not peer.link.is_closed:
                return name
        channel = self._call(address, seconds)
        name = channel.peer.node
        if self._is_front and channel.peer.version != __version__:
            channel.socket.close()
            raise MeshError(
                f"node {name} runs zse {channel.peer.version or 'of no version'}, "
                f"this is {__version__}",
                hint="Let all nodes run the same version: kernels decide bits.",
            )
        with self._lock:
            found = self.by_name.get(name)
            if found is not None and not found.link.is_closed:
                channel.socket.close()
                raise MeshError(
                    f"two nodes are named {name!r}: {found.address} and {address}",
                    hint="Give each its own --name.",
                )
            link = Link(channel, self._take, self._ended)
            peer = self.by_name[name] = Peer(address, link)
            peer.state_time = time.monotonic()
        link.start()
        self._on_change(name, True, "")
        return name

    def alive(self) -> list[Peer]:
        return [peer for peer in list(self.by_name.values()) if not peer.link.is_closed]

    def send(self, name: str, frame: Frame) -> None:
        peer = self.by_name.get(name)
        if peer is not None:
            peer.link.send(frame)

    def give_up(self, name: str, reason: str) -> None:
        """End the link to a node; it forgets what it was told, and may come again."""
        peer = self.by_name.get(name)
        if peer is not None:
            peer.link.close(reason)

    def beat(self) -> None:
        for peer in self.alive():
            peer.link.send(Frame(kind=Kind.BEAT))

    def close(self) -> None:
        for peer in self.alive():
            peer.link.close()

    def _take(self, link: Link, frame: Frame) -> None:
        peer = self.by_name.get(link.peer.node)
        if peer is None or peer.link is not link:
            return
        if frame.kind is Kind.STATE:
            peer.state = decode(frame.head, NodeState)
            peer.state_time = time.monotonic()
        elif frame.kind is Kind.ANSWER:
            peer.answered(frame.step, bytes(frame.head))
        elif frame.kind is Kind.TOKENS:
            self._on_tokens(frame)

    def _ended(self, link: Link, reason: str) -> None:
        peer = self.by_name.get(link.peer.node)
        if peer is not None and peer.link is link:
            reason = peer.state.problem or reason
            peer.fail(reason)
            self._on_change(peer.name, False, reason)


def learn_facts(peers: Sequence[Peer]) -> None:
    """Ask nodes what they have, all at once: each measures itself for a while when first asked.

    Raises:
        MeshError: One does not answer.
    """
    with ThreadPoolExecutor(max(len(peers), 1)) as threads:
        asked = [threads.submit(peer.answer, AskFacts(), Facts) for peer in peers]
        for peer, facts in zip(peers, asked, strict=True):
            peer.facts = facts.result()


def describe(peer: Peer) -> dict[str, Any]:
    """Return a node in plain values."""
    facts = peer.facts
    return {
        "name": peer.name,
        "address": peer.address,
        "memory_bytes": facts and facts.memory_bytes,
        "bytes_per_second": facts and round(facts.bytes_per_second),
        "cores": facts and facts.cores,
        "device": facts and facts.device,
        "devices_of_a_layer": facts and facts.shares,
        "version": facts and facts.version,
        "epoch": peer.state.epoch,
        "stages": [
            {
                "first_layer": stage.first_layer,
                "end_layer": stage.end_layer,
                "computes": stage.is_primary,
                "step": stage.done,
                "step_us": stage.step_microseconds,
            }
            for stage in peer.state.stages
        ],
        "silent": peer.state.silent,
    }
