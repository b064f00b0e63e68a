"""A front end: it gives orders, sends steps, and hands a lost node's work to its standby.

It alone decides who is lost, so there is no quorum and no split: a node obeys the newest order, and
what an older one caused is void. It is also what everything hangs on: with it the requests go.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import MeshError, ZSEError
from zse.mesh.duties import after_loss, move_to_free, next_standby
from zse.mesh.flight import Flight
from zse.mesh.frames import Frame, Kind
from zse.mesh.judging import Judge
from zse.mesh.lateness import Feeding, Gap, holder_of, is_at_work
from zse.mesh.leftovers import Leftovers
from zse.mesh.membership import Standing
from zse.mesh.messages import AskOpen, Done, Order, Place, StepHead, encode
from zse.mesh.peers import Peers, describe
from zse.mesh.readiness import Readiness
from zse.mesh.rejoining import Rejoining

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.types import StepBatch
    from zse.mesh.codecs import Codec
    from zse.mesh.duties import Duties, Duty
    from zse.mesh.finding import Finder
    from zse.mesh.flight import MeshStep
    from zse.mesh.membership import Patience
    from zse.mesh.peers import Peer

_LOG = logging.getLogger("zse.mesh")
_TICK_SECONDS = 0.01
_BEAT_TICKS = 4
_OPEN_SECONDS = 600.0
_SLOW_SECONDS = 30.0
"""How long a node that was too slow gets no work."""


class Front:
    """See above.

    Args:
        secret: Of the mesh.
        vocab_size: Of the model.
        finder: Where nodes are; one that comes later gets its share of the work.
        patience: With nodes that are silent.
    """

    def __init__(
        self,
        secret: bytes,
        vocab_size: int,
        finder: Finder,
        patience: Patience | None = None,
    ) -> None:
        self.peers = Peers(secret, self._take_tokens, self._changed)
        self._lock = threading.RLock()
        self._flight = Flight(vocab_size)
        self._judge = Judge(self.peers, finder, patience, self._can_lose)
        self.membership = self._judge.membership
        self.duties: Duties = ()
        self._codecs: list[Codec] = []
        self._opens: Callable[[Duty], AskOpen] | None = None
        self._said = Readiness(self.peers)
        self.epoch = 0
        self._order_time = 0.0
        self._feeding, self._gap = Feeding(), Gap()
        self._leftovers = Leftovers(self.peers)
        self.num_failovers = 0
        self.last_failover_seconds = 0.0
        self._rejoining = Rejoining(self.peers, finder, self._slow_addresses)
        self._problems: dict[str, str] = {}
        """What nodes that are there said that they cannot do."""
        self._refused: dict[tuple[str, int], float] = {}
        self._slow_until: dict[str, float] = {}
        self._resent: tuple[int, int] = (0, 0)
        self._is_opening = False
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, name="zse-mesh-watch", daemon=True),
            self._rejoining.thread(self._stop),
        ]

    @property
    def addresses(self) -> set[str]:
        """Where nodes are looked for that are not there."""
        return self._rejoining.addresses

    def begin(self, duties: Duties, codecs: list[Codec], opens: Callable[[Duty], AskOpen]) -> None:
        """Take up the work.

        Args:
            duties: Who computes what at first; all stages are open there.
            codecs: The form of rows on their way to each stage.
            opens: What a node is asked for, to open a stage.
        """
        with self._lock:
            self.duties, self._codecs, self._opens = duties, codecs, opens
            self._give_order()
        for thread in self._threads:
            thread.start()

    def note_problem(self, node: str, problem: str) -> None:
        """Say in ``describe`` what a node cannot do; until it can."""
        self._problems[node] = problem

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        with self._lock:
            self._flight.fail(MeshError("the mesh was left"))
        self.peers.close()

    # --- steps ---------------------------------------------------------------------------------

    def submit(self, batch: StepBatch) -> MeshStep:
        """Send a step on its way."""
        with self._lock:
            step = self._flight.add(batch)
            if self.duties:
                settled = self._settled()
                self._flight.trim(settled[0])
                self._send(step, settled)
            else:
                step.resolve(None, MeshError("the mesh has lost a stage that nobody else holds"))
            return step

    def _send(self, step: MeshStep, settled: list[int]) -> None:
        raw = msgspec.Raw(step.batch)
        head = encode(StepHead(0, self._flight.answered, settled, raw))
        frame = Frame(kind=Kind.STEP, epoch=self.epoch, step=step.number, head=head)
        self.peers.send(self.duties[0].node, frame)

    def _take_tokens(self, frame: Frame) -> None:
        with self._lock:
            if frame.epoch == self.epoch:
                self._flight.take(frame)

    def _settled(self) -> list[int]:
        """Return for each stage up to which step nothing before it has to be remembered.

        Its standby has what it needs. Where there is none, who computes it has got so far: one that
        has just taken it over may not have, though later stages have answered.
        """
        found = []
        for duty in self.duties:
            if duty.standby:
                found.append(self._said.done_by(duty, self.epoch))
            else:
                found.append(min(self._flight.answered, self._said.computed_by(duty, self.epoch)))
        return found

    def _ready(self) -> set[tuple[int, int]]:
        """Return the layers whose standbys are there and have all that is not in a log."""
        there = {duty.standby for duty in self.duties if self._is_there(duty.standby)}
        if not self._flight.answered:
            return {duty.layers for duty in self.duties if duty.standby in there}
        return self._said.ready(self.duties, there, self.epoch)

    def _is_there(self, node: str) -> bool:
        member = self.membership.members.get(node)
        return member is not None and member.standing is Standing.ALIVE

    # --- orders --------------------------------------------------------------------------------

    def _give_order(self) -> None:
        """Tell everybody who computes what; all that is on its way begins anew."""
        self.epoch += 1
        self._order_time = time.monotonic()
        settled = self._settled()
        order = Order(
            self.epoch,
            [self._place(duty, duty.node) for duty in self.duties],
            [int(codec) for codec in self._codecs],
            [self._place(duty, duty.standby) for duty in self.duties if duty.standby],
            self._flight.answered,
            settled,
        )
        for peer in self.peers.alive():
            peer.ask(order)
        self._flight.begun_anew()
        for step in self._flight.to_resend():
            self._send(step, settled)

    def _place(self, duty: Duty, node: str) -> Place:
        return Place(*duty.layers, node, self.peers.by_name[node].address)

    def _lose(self, node: str, why: str) -> None:
        """Hand the work of a node to its standbys."""
        begun = time.perf_counter()
        with self._lock:
            if all(node not in (duty.node, duty.standby) for duty in self.duties):
                return
            changed = after_loss(self.duties, node, self._ready())
            if changed is None:
                _LOG.error("node %s is lost (%s) with a stage that nobody else holds", node, why)
                self._give_all_up(
                    f"node {node} is lost ({why}) before anybody else had what it computed"
                )
                return
            self._hand_over(changed)
            self.num_failovers += 1
            self._give_order()
            self.last_failover_seconds = time.perf_counter() - begun
        _LOG.warning("node %s is lost (%s): epoch %d goes on without it", node, why, self.epoch)

    def _give_all_up(self, why: str) -> None:
        self.duties = ()
        hint = "Start the server again, with a node more or without that one."
        self._flight.fail(MeshError(why, hint=hint))

    def _hand_over(self, changed: Duties) -> None:
        """Let other nodes do some of the work; nothing that was said of them before counts."""
        for before, after in zip(self.duties, changed, strict=True):
            if before.node != after.node:
                self._said.forget(before)
                self._said.forget(after)
        self.duties = changed

    def _changed(self, node: str, is_there: bool, reason: str) -> None:
        now = time.monotonic()
        if is_there:
            self.membership.joined(node, now)
        else:
            self.membership.ended(node)
            self._lose(node, reason)

    # --- watching ------------------------------------------------------------------------------

    def _watch(self) -> None:
        tick = 0
        while not self._stop.wait(_TICK_SECONDS):
            tick += 1
            try:
                if tick % _BEAT_TICKS == 0:
                    self.peers.beat()
                now = time.monotonic()
                self._look_at_steps(self._judge.look(now, self._flight.answered), now)
                self._look_at_duties()
            except ZSEError as error:
                _LOG.warning("%s", error)
            except Exception:  # noqa: BLE001 - whoever watches goes on
                _LOG.exception("the watch over the mesh failed")

    def _can_lose(self, node: str) -> bool:
        """Whether others have all that a node computes."""
        with self._lock:
            ready = self._ready()
            return all(duty.layers in ready for duty in self.duties if duty.node == node)

    def _look_at_steps(self, slept_seconds: float, now: float) -> None:
        with self._lock:
            if slept_seconds:
                self._flight.overslept(slept_seconds, now)
            overdue = self._flight.overdue(now, self._resent[0])
            if overdue is None or not self.duties:
                return
            if overdue.is_first and is_at_work(self.peers.alive(), overdue.number, self.epoch, now):
                return
            culprit = holder_of(self.duties, self.peers, overdue.number, now)
            if self.membership.is_doubted(culprit, now):
                return  # the verdict comes sooner than it would answer what is sent again
            if self._resent[0] != overdue.number:
                # A frame may have gone astray; sending all again is cheap and can do no harm.
                self._resent = overdue.number, self.epoch
                _LOG.info("step %d is late (%.2f s): sent again", overdue.number, overdue.seconds)
                self._give_order()
                return
            if self._gap.is_hopeless(self.duties, self.peers, overdue.number, now):
                _LOG.error(
                    "step %d was lost with who had it: nobody can send it again", overdue.number
                )
                self._give_all_up(f"step {overdue.number} was lost with the nodes that had it")
                return
            if culprit and self._can_lose(culprit):
                self._slow_until[culprit] = now + _SLOW_SECONDS
                self._resent = 0, 0
                self.peers.give_up(culprit, f"it takes {overdue.seconds:.2f} s for a step")
            else:
                self._flight.begun_anew()

    def _look_at_duties(self) -> None:
        """Let every stage have a standby, and a free node some work."""
        now = time.monotonic()
        with self._lock:
            if not self.duties or self._is_opening:
                return
            if self._feeding.is_starved(
                self.duties, self._ready(), self.peers.alive(),
                order_time=self._order_time, now=now,
            ):  # fmt: skip
                self._give_order()  # what a standby was sent went astray: it begins anew
                return
            moved = move_to_free(self.duties, self._ready())
            if moved is not None:
                self._hand_over(moved)
                self._give_order()
                _LOG.info("epoch %d: a free node has taken a stage over", self.epoch)
                return
            alive = [
                name
                for name in self.membership.alive()
                if self._slow_until.get(name, 0.0) < now
                and not self.peers.by_name[name].link.is_closed
            ]
            refused = {key for key, until in self._refused.items() if until > now}
            found = next_standby(self.duties, alive, refused)
            if found is None:
                self._leftovers.close(self.duties, self.epoch)
                return
            self._is_opening = True
            peer, duty = self.peers.by_name[found[1]], self.duties[found[0]]
        threading.Thread(
            target=self._open_standby, args=(found[0], duty, peer), daemon=True
        ).start()

    def _open_standby(self, place: int, duty: Duty, peer: Peer) -> None:
        assert self._opens is not None
        try:
            peer.answer(self._opens(duty), Done, _OPEN_SECONDS)
            with self._lock:
                if place < len(self.duties) and self.duties[place] == duty:
                    changed = replace(duty, standby=peer.name)
                    self._problems.pop(peer.name, None)
                    self._said.forget(changed)
                    self.duties = (*self.duties[:place], changed, *self.duties[place + 1 :])
                    self._give_order()
        except ZSEError as error:
            _LOG.warning("%s cannot stand by for layers %s: %s", peer.name, duty.layers, error)
            self.note_problem(peer.name, f"it cannot stand by for layers {duty.layers}: {error}")
            self._refused[peer.name, place] = time.monotonic() + _SLOW_SECONDS
        finally:
            self._is_opening = False

    def _slow_addresses(self) -> set[str]:
        """Return where nodes are that were too slow a while ago."""
        now = time.monotonic()
        return {
            self.peers.by_name[name].address
            for name, until in list(self._slow_until.items())
            if until > now and name in self.peers.by_name
        }

    def describe(self) -> dict[str, Any]:
        """Return the mesh in plain values."""
        with self._lock:
            duties, members = self.duties, dict(self.membership.members)
            return {
                "epoch": self.epoch,
                "failovers": self.num_failovers,
                "steps": self._flight.submitted,
                "problems": {**self._rejoining.problems, **self._problems},
                "stages": [
                    {
                        "first_layer": duty.first_layer,
                        "end_layer": duty.end_layer,
                        "node": duty.node,
                        "standby": duty.standby,
                        "devices": duty.devices,
                        "standby_ready": duty.layers in self._ready(),
                    }
                    for duty in duties
                ],
                "nodes": [
                    {**describe(peer), "standing": members[name].standing.value}
                    for name, peer in sorted(self.peers.by_name.items())
                    if name in members  # else it is just coming
                ],
            }
