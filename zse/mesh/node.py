r"""A node: a process that others call, and a worker that has stages of a model.

    listener -> a link for each peer -> one queue -> the worker: steps, blocks, orders
                                    \\-> beats, which are answered at once
                                     \\-> asks that take long, in threads of their own

It listens before the code that computes is imported, which takes longer than all else of a start:
whoever waits for it has called it, and asked for a stage, by the time that is there.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec.structs import replace

from zse import __version__
from zse.errors import ZSEError
from zse.mesh.frames import Frame, Kind
from zse.mesh.handshake import Introduction, caller_of, shake_hands
from zse.mesh.link import Link
from zse.mesh.looking import answer_looks, look
from zse.mesh.messages import (
    AskClose,
    AskFacts,
    AskLook,
    AskOpen,
    Done,
    Facts,
    NodeState,
    Order,
    decode_ask,
    encode,
)
from zse.mesh.outgoing import Outgoing
from zse.mesh.room import Room
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.errors import RankError
    from zse.mesh.opening import AnyStage
    from zse.mesh.worker import Work, Worker

_LOG = logging.getLogger("zse.mesh")
_MOST_PENDING_CALLERS = 64
_MOST_ASKS_AT_ONCE = 16
"""Of those that take long, from all who may ask."""
_MOST_WAITING_BYTES = 512 << 20
"""Of rows and blocks that have come and the worker has not got to."""
_PAUSE_SECONDS = 0.1
"""Before the next look where a caller could not be taken, as when descriptors have run out."""


@runtime_checkable
class CanBeLost(Protocol):
    """A stage that other processes compute, too."""

    def when_lost(self, tell: Callable[[RankError], None]) -> None:
        """Have the loss of one of them told, from another thread."""


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
        self._tasks: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._room = Room(_MOST_WAITING_BYTES)
        self._worker: Worker | None = None
        """None until its code is there; its thread alone makes it."""
        self._front: Link | None = None
        self._listener = socket.create_server((setup.host, setup.port), backlog=128)
        host, port = self._listener.getsockname()[:2]
        self.address = setup.advertised or f"{host}:{port}"
        self._is_closed = False
        self._callers = threading.BoundedSemaphore(_MOST_PENDING_CALLERS)
        self._asks = threading.BoundedSemaphore(_MOST_ASKS_AT_ONCE)
        self._outgoing = Outgoing(self._call)
        self._threads = [
            threading.Thread(target=self._accept, name="zse-mesh-accept", daemon=True),
            threading.Thread(target=self._work, name="zse-mesh-work", daemon=True),
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
        self._tasks.put(None)
        self._room.close()
        self._threads[1].join()
        self._outgoing.close()
        if self._front is not None:
            self._front.close()

    def wait(self) -> None:
        """Return when the node was closed."""
        self._threads[0].join()

    def _work(self) -> None:
        from zse.mesh.worker import Worker

        self._worker = Worker(self.name, self._outgoing, self._tell_front)
        self._worker.run(self._tasks)

    def _tell_front(self, frame: Frame) -> None:
        front = self._front
        if front is not None:
            front.send(frame)

    def _fall(self, front: Link, reason: str) -> None:
        """Be lost for a front end, as if this process had ended: it calls again, and begins anew.

        What else was computed or kept here goes, too; others have it, as they would have then.
        """
        if self._worker is not None and not front.is_closed:
            _LOG.error("%s: all stages of this node are given up", reason)
            last_words = replace(self._worker.state, problem=reason)
            front.send(Frame(kind=Kind.STATE, head=encode(last_words)))
        front.close(reason)

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
            self._tasks.put(lambda worker: worker.forget_front())
        link.start()

    def _ended(self, link: Link, reason: str) -> None:
        if link is self._front:
            self._front = None
            _LOG.warning("the front end is gone: %s", reason)
            self._tasks.put(lambda worker: worker.forget_front())

    def _take(self, link: Link, frame: Frame) -> None:
        """Deal with a frame in the thread that read it, or leave it to the worker."""
        if frame.kind is Kind.BEAT:
            state = NodeState() if self._worker is None else self._worker.state
            link.send(Frame(kind=Kind.STATE, step=frame.step, head=encode(state)))
        elif frame.kind is Kind.ASK:
            self._take_ask(link, frame)
        elif frame.kind is Kind.STATE:
            pass  # the link has noted that it heard something
        else:
            num_bytes = len(frame.body)
            self._room.take(num_bytes)
            self._tasks.put(lambda worker: self._hand_on(worker, frame, num_bytes))

    def _hand_on(self, worker: Worker, frame: Frame, num_bytes: int) -> None:
        try:
            worker.take(frame)
        finally:
            self._room.give(num_bytes)

    # --- what others ask -----------------------------------------------------------------------

    def _take_ask(self, link: Link, frame: Frame) -> None:
        ask, number = decode_ask(frame.head), frame.step
        is_question = isinstance(ask, AskFacts | AskLook)
        if link.peer.purpose != "front" and not (is_question and link.peer.purpose == "survey"):
            link.close("only a front end gives orders")
        elif isinstance(ask, Order):
            self._tasks.put(lambda worker: _answer(link, number, worker.follow(ask)))
        elif isinstance(ask, AskClose):
            self._tasks.put(lambda worker: _answer(link, number, worker.drop_stage(ask)))
        elif self._asks.acquire(blocking=False):
            threading.Thread(target=self._do_ask, args=(link, number, ask), daemon=True).start()
        else:
            told = f"{self.name} has {_MOST_ASKS_AT_ONCE} questions to answer already"
            _answer(link, number, Done(told, "Ask again."))

    def _do_ask(self, link: Link, number: int, ask: AskFacts | AskLook | AskOpen) -> None:
        try:
            self._do(link, number, ask)
        finally:
            self._asks.release()

    def _do(self, link: Link, number: int, ask: AskFacts | AskLook | AskOpen) -> None:
        try:
            if isinstance(ask, AskFacts):
                answer: Any = self._facts()
            elif isinstance(ask, AskLook):
                answer = look(lambda a, s: self._call("look", a, s), ask)
            else:
                begun = time.perf_counter()
                part = self._open_stage(ask)
                if isinstance(part, CanBeLost):
                    part.when_lost(lambda error: self._fall(link, str(error)))
                self._tasks.put(
                    lambda worker: _answer(link, number, worker.take_stage(part, begun))
                )
                return
        except ZSEError as error:
            answer = Done(f"{self.name}: {error}", error.hint)
        except Exception as error:  # noqa: BLE001 - a node outlives what it is asked
            _LOG.exception("what a front end asked for failed")
            answer = Done(f"{self.name}: {error}")
        _answer(link, number, answer)


def _answer(link: Link, number: int, answer: Any) -> None:
    link.send(Frame(kind=Kind.ANSWER, step=number, head=encode(answer)))
