r"""A node: stages of a model, in one process, for a front that says what to do.

    listener -> a link for each peer -> one queue -> the worker: steps, blocks, orders
                                    \\-> beats, which are answered at once
                                     \\-> asks that take long, in threads of their own

The worker owns the stages, so nothing of them is locked. An order of a newer epoch makes all
frames of older ones void: a node that was given up and comes back can do no harm.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from zse import __version__
from zse.errors import MeshError, ZSEError
from zse.mesh.batches import WireTokens
from zse.mesh.frames import Frame, Kind
from zse.mesh.handshake import Introduction, caller_of, shake_hands
from zse.mesh.link import Link
from zse.mesh.looking import answer_looks, look
from zse.mesh.messages import (
    AskClose,
    AskFacts,
    AskLook,
    AskOpen,
    BlocksHead,
    Done,
    Facts,
    NodeState,
    Order,
    StepHead,
    decode,
    decode_ask,
    encode,
)
from zse.mesh.opening import kind_of
from zse.mesh.outgoing import Outgoing
from zse.mesh.stage_host import StageHost
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.opening import AnyStage

_LOG = logging.getLogger("zse.mesh")
_IDLE_SECONDS = 0.02
"""Without work for so long, what a standby lacks is sent."""
_SILENT_SECONDS = 0.25
_MOST_BLOCKS_WAITING_BYTES = 8 << 20
_MOST_PENDING_CALLERS = 64
_PAUSE_SECONDS = 0.1
"""Before the next look where a caller could not be taken, as when descriptors have run out."""


@record
class NodeSetup:
    """What a node is started with."""

    name: str
    secret: bytes
    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    """Address that others reach it at; empty: where it listens."""


class Node:
    """See above.

    Args:
        setup: Who it is and where it listens.
        facts: What it says of its machine.
        open_stage: Opens what a front asks for.
    """

    def __init__(
        self,
        setup: NodeSetup,
        facts: Callable[[], Facts],
        open_stage: Callable[[AskOpen], AnyStage],
    ) -> None:
        self.name = setup.name
        self._setup, self._facts, self._open_stage = setup, facts, open_stage
        self._own = Introduction(setup.name, "node", __version__)
        self._work: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._hosts: dict[tuple[int, int], StageHost] = {}
        self._order = Order(0, [], [], [], 0, [])
        self._front: Link | None = None
        self._computing = 0
        self._early: list[tuple[Link, Frame]] = []
        """Frames of an epoch whose order has not come yet."""
        self._listener = socket.create_server((setup.host, setup.port), backlog=128)
        host, port = self._listener.getsockname()[:2]
        self.address = setup.advertised or f"{host}:{port}"
        self._is_closed = False
        self._callers = threading.BoundedSemaphore(_MOST_PENDING_CALLERS)
        self._outgoing = Outgoing(self._call)
        self._threads = [
            threading.Thread(target=self._accept, name="zse-mesh-accept", daemon=True),
            threading.Thread(target=self._run, name="zse-mesh-work", daemon=True),
        ]

    def start(self) -> Node:
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Leave: peers see their connections end."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._work.put(None)
        self._threads[1].join()
        self._outgoing.close()
        if self._front is not None:
            self._front.close()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    def wait(self) -> None:
        """Return when the node was closed."""
        self._threads[0].join()

    # --- connections ---------------------------------------------------------------------------

    def _call(self, purpose: str, address: str, seconds: float) -> Any:
        own = Introduction(self.name, purpose, __version__)
        return caller_of(self._setup.secret, own)(address, seconds)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(_PAUSE_SECONDS)
                continue
            if not self._callers.acquire(blocking=False):
                connection.close()
                continue
            thread = threading.Thread(target=self._welcome, args=(connection,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads
                connection.close()
                self._callers.release()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            channel = shake_hands(connection, self._setup.secret, self._own, is_caller=False)
            if channel.peer.purpose == "look":
                answer_looks(channel)
                return
        except (ZSEError, OSError) as error:
            _LOG.warning("a caller was turned away: %s", error)
            connection.close()
            return
        finally:
            self._callers.release()
        link = Link(channel, self._take, self._ended)
        if channel.peer.purpose == "front":
            before, self._front = self._front, link
            if before is not None:
                before.close("another front end has come")
            self._work.put(("orphaned",))
        link.start()

    def _ended(self, link: Link, reason: str) -> None:
        if link is self._front:
            self._front = None
            _LOG.warning("the front end is gone: %s", reason)
            self._work.put(("orphaned",))

    def _take(self, link: Link, frame: Frame) -> None:
        """Deal with a frame in the thread that read it, or leave it to the worker."""
        if frame.kind is Kind.BEAT:
            link.send(Frame(kind=Kind.STATE, step=frame.step, head=encode(self._state())))
        elif frame.kind is Kind.ASK:
            self._take_ask(link, frame)
        elif frame.kind is Kind.STATE:
            pass  # the link has noted that it heard something
        else:
            self._work.put(("frame", link, frame))

    def _take_ask(self, link: Link, frame: Frame) -> None:
        ask = decode_ask(frame.head)
        is_question = isinstance(ask, AskFacts | AskLook)
        if link.peer.purpose != "front" and not (is_question and link.peer.purpose == "survey"):
            link.close("only a front end gives orders")
            return
        if isinstance(ask, Order | AskClose):
            self._work.put(("ask", link, frame.step, ask))
            return
        threading.Thread(target=self._do_ask, args=(link, frame.step, ask), daemon=True).start()

    def _do_ask(self, link: Link, number: int, ask: AskFacts | AskLook | AskOpen) -> None:
        try:
            if isinstance(ask, AskFacts):
                answer: Any = self._facts()
            elif isinstance(ask, AskLook):
                answer = look(lambda a, s: self._call("look", a, s), ask)
            else:
                begun = time.perf_counter()
                part = self._open_stage(ask)
                self._work.put(("opened", link, number, part, begun))
                return
        except ZSEError as error:
            answer = Done(f"{self.name}: {error}", error.hint)
        except Exception as error:  # noqa: BLE001 - a node outlives what it is asked
            _LOG.exception("what a front end asked for failed")
            answer = Done(f"{self.name}: {error}")
        _answer(link, number, answer)

    def _state(self) -> NodeState:
        stages = [host.state for host in list(self._hosts.values())]
        return NodeState(
            self._order.epoch,
            stages,
            self._outgoing.silent(_SILENT_SECONDS),
            self._computing,
            self._outgoing.moving(_SILENT_SECONDS),
        )

    # --- the worker ----------------------------------------------------------------------------

    def _run(self) -> None:
        is_settled = False
        while True:
            try:
                work = self._work.get(timeout=_IDLE_SECONDS if not is_settled else None)
            except queue.Empty:
                is_settled = self._settle(is_idle=True)
                continue
            if work is None:
                return
            is_settled = False
            try:
                getattr(self, f"_on_{work[0]}")(*work[1:])
            except ZSEError as error:
                _LOG.warning("a frame was refused: %s", error)
            except Exception:  # noqa: BLE001 - a node outlives what it is sent
                _LOG.exception("the worker of a node failed")

    def _on_frame(self, link: Link, frame: Frame) -> None:
        if frame.epoch < self._order.epoch:
            return  # of a node, or a front, that has been given up
        if frame.epoch > self._order.epoch:
            self._early.append((link, frame))
            return
        if frame.kind is Kind.STEP:
            self._on_step(frame)
        elif frame.kind is Kind.BLOCKS:
            head = decode(frame.head, BlocksHead)
            host = self._hosts.get((head.first_layer, head.end_layer))
            if host is not None:
                host.take_blocks(frame.step, head, memoryview(frame.body))

    def _on_step(self, frame: Frame) -> None:
        head = decode(frame.head, StepHead)
        count = len(self._order.chain)
        if not 0 <= head.stage < count or len(head.settled) != count:
            raise MeshError(f"a step is for stage {head.stage} of {len(self._order.chain)}")
        place = self._order.chain[head.stage]
        host = self._hosts.get(place.layers)
        if host is None or place.node != self.name or not host.is_primary:
            raise MeshError(f"{self.name} was sent a step of layers {place.layers}: not its own")
        self._order.answered, self._order.settled = head.answered, head.settled
        self._computing = frame.step
        try:
            is_next = host.compute(frame.step, head, memoryview(frame.body), self._order.codecs)
        except ZSEError as error:
            self._report(frame.step, error)
            return
        finally:
            self._computing = 0
        if is_next:
            host.trim(self._forgettable(head.stage), head.settled[head.stage])
            if host.remembers(frame.step):  # else all behind it have it, and only this one did not
                self._pass_on(head.stage, host, frame.step)
            self._settle(is_idle=False)

    def _forgettable(self, stage: int) -> int:
        """Return the step up to which the next stage will never ask for anything again."""
        settled = self._order.settled
        after = settled[stage + 1] if stage + 1 < len(settled) else self._order.answered
        return min(self._order.answered, after)

    def _pass_on(self, stage: int, host: StageHost, step: int) -> None:
        order = self._order
        batch, rows = host.sent(step)
        if stage + 1 == len(order.chain):
            if self._front is not None:
                self._front.send(Frame(kind=Kind.TOKENS, epoch=order.epoch, step=step, head=batch))
            return
        head = StepHead(stage + 1, order.answered, order.settled, _raw(batch))
        place = order.chain[stage + 1]
        frame = Frame(
            kind=Kind.STEP,
            codec=order.codecs[stage + 1],
            epoch=order.epoch,
            step=step,
            head=encode(head),
            body=rows,
        )
        if place.node == self.name:
            self._on_step(frame)
        else:
            self._outgoing.send("rows", place, frame)

    def _report(self, step: int, error: ZSEError) -> None:
        """Tell the front why there will be no tokens."""
        _LOG.warning("step %d failed: %s", step, error)
        if self._front is not None:
            head = encode(WireTokens([], f"{self.name}: {error}"))
            self._front.send(Frame(kind=Kind.TOKENS, epoch=self._order.epoch, step=step, head=head))

    def _settle(self, *, is_idle: bool) -> bool:
        """Send standbys some of what they lack; return whether they lack nothing."""
        is_settled = True
        for place in self._order.standbys:
            host = self._hosts.get(place.layers)
            if host is None or not host.is_primary or place.node == self.name:
                continue
            if self._outgoing.backlog_bytes("blocks", place) > _MOST_BLOCKS_WAITING_BYTES:
                is_settled = False  # the wire has enough of them; what changes meanwhile is one
                continue
            frame = host.blocks_to_settle(self._order.epoch, is_idle=is_idle)
            if frame is not None:
                self._outgoing.send("blocks", place, frame)
                is_settled = False
        return is_settled

    # --- what a front asks ---------------------------------------------------------------------

    def _on_ask(self, link: Link, number: int, ask: Order | AskClose) -> None:
        if isinstance(ask, Order):
            self._follow_order(ask)
        else:
            host = self._hosts.get((ask.first_layer, ask.end_layer))
            if host is not None and not host.is_primary:
                del self._hosts[host.layers]
                host.close()
        _answer(link, number, Done())

    def _on_opened(self, link: Link, number: int, part: AnyStage, begun: float) -> None:
        host = StageHost(part)
        before = self._hosts.pop(host.layers, None)
        if before is not None:
            before.close()
        self._hosts[host.layers] = host
        seconds = time.perf_counter() - begun
        weights = part.memory_bytes()["weights"]
        _answer(link, number, Done("", "", seconds, weights, kind_of(part)))

    def _on_orphaned(self) -> None:
        """Without its front nobody counts on what was computed; the next one begins anew."""
        self._order = Order(0, [], [], [], 0, [])
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
        self._early.clear()

    def _follow_order(self, order: Order) -> None:
        if order.epoch <= self._order.epoch:
            return
        if not len(order.chain) == len(order.codecs) == len(order.settled):
            raise MeshError("an order has lists of different lengths")
        self._order = order
        led = {place.layers for place in order.chain if place.node == self.name}
        feeds = {place.layers: place.node for place in order.standbys if place.node != self.name}
        places = zip(order.chain, order.settled, strict=True)
        settled = {place.layers: step for place, step in places}
        own = {place.layers for place in order.standbys if place.node == self.name}
        stood_by = {layers: step for layers, step in settled.items() if layers in own}
        self._outgoing.keep([*order.chain, *order.standbys], order.epoch)
        for layers, host in self._hosts.items():
            if layers in led:
                host.lead(order.answered)
                host.feed(feeds.get(layers, ""), settled.get(layers, 0))
            else:
                host.follow(stood_by.get(layers, 0))
        for stage, place in enumerate(order.chain):
            if place.node == self.name and (found := self._hosts.get(place.layers)) is not None:
                for step in found.steps_to_resend:
                    if found.remembers(step):
                        self._pass_on(stage, found, step)
        early, self._early = self._early, []
        for link, frame in early:
            self._on_frame(link, frame)


def _answer(link: Link, number: int, answer: Any) -> None:
    link.send(Frame(kind=Kind.ANSWER, step=number, head=encode(answer)))


def _raw(data: bytes | memoryview) -> Any:
    return msgspec.Raw(data)
