"""What computes on a node: its stages, the order that they follow, and what standbys are sent.

All of it is one thread's, so nothing is locked. An order of a newer epoch makes all frames of older
ones void: a node that was given up and comes back can do no harm.
"""

from __future__ import annotations

import logging
import queue
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from zse.errors import MeshError, RankError, ZSEError
from zse.mesh.batches import WireTokens
from zse.mesh.frames import Frame, Kind
from zse.mesh.messages import BlocksHead, Done, NodeState, Order, StepHead, decode, encode
from zse.mesh.opening import kind_of
from zse.mesh.stage_host import StageHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.mesh.messages import AskClose
    from zse.mesh.opening import AnyStage
    from zse.mesh.outgoing import Outgoing

_LOG = logging.getLogger("zse.mesh")
_IDLE_SECONDS = 0.02
"""Without work for so long, what a standby lacks is sent."""
_SILENT_SECONDS = 0.25
_MOST_BLOCKS_WAITING_BYTES = 8 << 20
_MOST_EARLY_BYTES = 256 << 20


Work: TypeAlias = "Callable[[Worker], object]"


class Worker:
    """See above. All but ``state`` is for the thread that runs it.

    Args:
        name: Of the node.
        outgoing: The ways to other nodes.
        tell_front: Sends a frame to the front end, if there is one.
    """

    def __init__(self, name: str, outgoing: Outgoing, tell_front: Callable[[Frame], None]) -> None:
        self._name, self._outgoing, self._tell_front = name, outgoing, tell_front
        self._hosts: dict[tuple[int, int], StageHost] = {}
        self._order = _no_order()
        self._computing = 0
        self._early: list[Frame] = []
        """Frames of an epoch whose order has not come yet."""

    @property
    def state(self) -> NodeState:
        """What a front end is told at each beat."""
        stages = [host.state for host in list(self._hosts.values())]
        return NodeState(
            self._order.epoch,
            stages,
            self._outgoing.silent(_SILENT_SECONDS),
            self._computing,
            self._outgoing.moving(_SILENT_SECONDS),
            round(self._outgoing.late_seconds * 1e3),
        )

    def run(self, tasks: queue.SimpleQueue[Work | None]) -> None:
        """Do what comes until None does; feed standbys where there is time."""
        is_settled = False
        while True:
            try:
                work = tasks.get(timeout=_IDLE_SECONDS if not is_settled else None)
            except queue.Empty:
                is_settled = self._outlive(_settle_more) is not False
                continue
            if work is None:
                break
            is_settled = False
            self._outlive(work)
        self._close_stages()

    def _outlive(self, work: Work) -> object:
        """Do something, whatever comes of it; return what it returns, or None where it failed."""
        try:
            return work(self)
        except RankError:
            pass  # the node leaves its front, which has others go on
        except ZSEError as error:
            _LOG.warning("a frame was refused: %s", error)
        except Exception:  # noqa: BLE001 - a node outlives what it is sent
            _LOG.exception("the worker of a node failed")
        return None

    # --- what a front asks ---------------------------------------------------------------------

    def take_stage(self, part: AnyStage, begun: float) -> Done:
        """Hold a stage that was opened; return what the front is told of it."""
        host = StageHost(part)
        before = self._hosts.pop(host.layers, None)
        if before is not None:
            before.close()
        self._hosts[host.layers] = host
        seconds = time.perf_counter() - begun
        return Done("", "", seconds, part.memory_bytes()["weights"], kind_of(part))

    def drop_stage(self, ask: AskClose) -> Done:
        """Close a stage that nobody counts on; return what the front is told."""
        host = self._hosts.get((ask.first_layer, ask.end_layer))
        if host is not None and not host.is_primary:
            del self._hosts[host.layers]
            host.close()
        return Done()

    def forget_front(self) -> None:
        """Without its front nobody counts on what was computed; the next one begins anew.

        On new connections, too: on one that was cut for seconds, TCP waits as long again before it
        tries what it has, though the wire has healed.
        """
        self._order = _no_order()
        self._outgoing.keep([], 0)
        self._close_stages()
        self._early.clear()

    def follow(self, order: Order) -> Done:
        """Do from now on what an order says, if it is newer; return what the front is told.

        Raises:
            MeshError: It contradicts itself.
        """
        if order.epoch <= self._order.epoch:
            return Done()
        if not len(order.chain) == len(order.codecs) == len(order.settled):
            raise MeshError("an order has lists of different lengths")
        self._outgoing.keep([*order.chain, *order.standbys], order.epoch)
        self._give_roles(order)
        self._order = order  # last: what is said of this epoch is said in its roles
        for stage, place in enumerate(order.chain):
            if place.node == self._name and (found := self._hosts.get(place.layers)) is not None:
                for step in found.steps_to_resend:
                    if found.remembers(step):
                        self._pass_on(stage, found, step)
        early, self._early = self._early, []
        for frame in early:
            self.take(frame)
        return Done()

    def _give_roles(self, order: Order) -> None:
        led = {place.layers for place in order.chain if place.node == self._name}
        feeds = {place.layers: place.node for place in order.standbys if place.node != self._name}
        places = zip(order.chain, order.settled, strict=True)
        settled = {place.layers: step for place, step in places}
        own = {place.layers for place in order.standbys if place.node == self._name}
        stood_by = {layers: step for layers, step in settled.items() if layers in own}
        for layers, host in self._hosts.items():
            if layers in led:
                host.lead(order.answered)
                host.feed(feeds.get(layers, ""), settled.get(layers, 0))
            else:
                host.follow(stood_by.get(layers, 0))

    def _close_stages(self) -> None:
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # --- steps and blocks ----------------------------------------------------------------------

    def take(self, frame: Frame) -> None:
        """Deal with a step, or with blocks of one that this node stands by for.

        Raises:
            MeshError: It is none of this node's.
        """
        if frame.epoch < self._order.epoch:
            return  # of a node, or a front, that has been given up
        if frame.epoch > self._order.epoch:
            self._keep_early(frame)
            return
        if frame.kind is Kind.STEP:
            self._take_step(frame)
        elif frame.kind is Kind.BLOCKS:
            head = decode(frame.head, BlocksHead)
            host = self._hosts.get((head.first_layer, head.end_layer))
            if host is not None:
                host.take_blocks(frame.step, head, memoryview(frame.body))

    def _keep_early(self, frame: Frame) -> None:
        """Keep a frame for the order that it belongs to; what is too much comes again by itself."""
        held = sum(len(one.head) + len(one.body) for one in self._early)
        if held + len(frame.head) + len(frame.body) > _MOST_EARLY_BYTES:
            _LOG.warning("a frame of epoch %d was dropped: its order does not come", frame.epoch)
        else:
            self._early.append(frame)

    def _take_step(self, frame: Frame) -> None:
        head = decode(frame.head, StepHead)
        host = self._host_of(head)
        self._order.answered, self._order.settled = head.answered, head.settled
        self._computing = frame.step
        try:
            is_next = host.compute(frame.step, head, memoryview(frame.body), self._order.codecs)
        except RankError:
            raise  # no tokens, and no reason to end a request: see ``_outlive``
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

    def _host_of(self, head: StepHead) -> StageHost:
        count = len(self._order.chain)
        if not 0 <= head.stage < count or len(head.settled) != count:
            raise MeshError(f"a step is for stage {head.stage} of {count}")
        place = self._order.chain[head.stage]
        host = self._hosts.get(place.layers)
        if host is None or place.node != self._name or not host.is_primary:
            raise MeshError(f"{self._name} was sent a step of layers {place.layers}: not its own")
        return host

    def _forgettable(self, stage: int) -> int:
        """Return the step up to which the next stage will never ask for anything again."""
        settled = self._order.settled
        after = settled[stage + 1] if stage + 1 < len(settled) else self._order.answered
        return min(self._order.answered, after)

    def _pass_on(self, stage: int, host: StageHost, step: int) -> None:
        order = self._order
        batch, rows = host.sent(step)
        if stage + 1 == len(order.chain):
            self._tell_front(Frame(kind=Kind.TOKENS, epoch=order.epoch, step=step, head=batch))
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
        if place.node == self._name:
            self._take_step(frame)
        else:
            self._outgoing.send("rows", place, frame)

    def _report(self, step: int, error: ZSEError) -> None:
        """Tell the front why there will be no tokens."""
        _LOG.warning("step %d failed: %s", step, error)
        head = encode(WireTokens([], f"{self._name}: {error}"))
        self._tell_front(Frame(kind=Kind.TOKENS, epoch=self._order.epoch, step=step, head=head))

    def _settle(self, *, is_idle: bool) -> bool:
        """Send standbys some of what they lack; return whether they lack nothing."""
        is_settled = True
        for place in self._order.standbys:
            host = self._hosts.get(place.layers)
            if host is None or not host.is_primary or place.node == self._name:
                continue
            if self._outgoing.backlog_bytes("blocks", place) > _MOST_BLOCKS_WAITING_BYTES:
                is_settled = False  # the wire has enough of them; what changes meanwhile is one
                continue
            frame = host.blocks_to_settle(self._order.epoch, is_idle=is_idle)
            if frame is not None:
                self._outgoing.send("blocks", place, frame)
                is_settled = False
        return is_settled


def _settle_more(worker: Worker) -> bool:
    return worker._settle(is_idle=True)


def _no_order() -> Order:
    return Order(0, [], [], [], 0, [])


def _raw(data: bytes | memoryview) -> Any:
    return msgspec.Raw(data)
