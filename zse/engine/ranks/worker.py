"""A rank other than the first: a process that loads its share and does what rank 0 says.

It ends with the process that started it, whatever happened to that. Signals of a terminal or of a
service manager are for rank 0, which lets this one finish.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from zse.backends import begin_arrival
from zse.backends.ranks import Share
from zse.engine.ranks.links import MemberLink, Task, note_of, receive_note, send_note
from zse.engine.ranks.messages import (
    BlockTables,
    End,
    Logits,
    Masks,
    Rest,
    Step,
    batch_of,
    decoded,
)
from zse.engine.ranks.opening import check_links, kind_of
from zse.engine.ranks.shared import Receiver, SharedMemory
from zse.engine.ranks.stages import Places, place_part
from zse.engine.wire_rows import GivenMasks
from zse.errors import EngineError
from zse.format.reader import ZSEReader
from zse.kernels.native.library import load
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.operations import PendingStep
    from zse.models.runner import ModelRunner
    from zse.options import LoadFields

_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG``."""
_STEPS_AHEAD = 1


class Member:
    """What a rank was told at its start, and what it has of the others.

    Args:
        task: Of rank 0.
        shared: The pages of all ranks.
        leader: The socket to rank 0.
    """

    def __init__(self, task: Task, shared: SharedMemory, leader: socket.socket) -> None:
        self.task = task
        self.options = load_options(**cast("LoadFields", task.options))
        self.cache_dir = None if task.cache_dir is None else Path(task.cache_dir)
        self.link = MemberLink(Share(rank=task.rank, ranks=len(task.devices)), shared, leader)
        library = load(self.options.device.cpu_instructions)
        self._receiver = Receiver(shared, library, task.rank, spin_ns=task.spin_nanoseconds)

    def obey(self, do: Callable[[memoryview], bool]) -> None:
        """Do what each message says, until ``do`` returns that it was the last one.

        Raises:
            DeviceError: The ranks have failed.
        """
        is_over = False
        while not is_over:
            data = self._receiver.receive()
            if data is None:
                self.link.check()
                continue
            is_over = do(data)
            self._receiver.done()


def main(arguments: Sequence[str]) -> NoReturn:
    """Be a rank of a model until rank 0 says the end, or ends."""
    be_rank(arguments, _serve)


def be_rank(arguments: Sequence[str], serve: Callable[[Member, ZSEReader], None]) -> NoReturn:
    """Be a process that rank 0 has started, and serve it with the model's file until it is done."""
    parent, memory_fd, socket_fd = map(int, arguments)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)  # it ended before this process could say that it goes with it
    leader = socket.socket(fileno=socket_fd)
    code = 0
    try:
        received = receive_note(leader)
        if received is None or not isinstance(received[0], Task):
            os._exit(1)
        task, [file_fd] = received[0], received[1]
        member = Member(task, SharedMemory(memory_fd), leader)
        serve(member, ZSEReader(f"/proc/self/fd/{file_fd}"))
    except BaseException as error:  # noqa: BLE001 - rank 0 raises it
        code = 1
        with contextlib.suppress(OSError):
            send_note(leader, note_of(error))
    # Threads may be inside native code, and there is nothing that has to be given back.
    os._exit(code)


def _serve(member: Member, reader: ZSEReader) -> None:
    task, options, link = member.task, member.options, member.link
    spec = spec_of(reader)
    places = Places(num_ranks=options.ranks.tensor_parallel, ends=tuple(task.ends))
    part = place_part(spec, reader.header.loaded(), link, places)
    arrival = begin_arrival(options, reader, cuts=part.cuts)
    if arrival is not None:
        check_links(arrival.gpu, task.devices)
    runner = load_runner(
        reader,
        options,
        cache_dir=member.cache_dir,
        spec=spec,
        arrival=arrival,
        part=part,
    )
    link.exchange(kind_of(runner.device))
    member.obey(_Rank(runner).do)


class _Rank:
    """Does what the messages say, in their order."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._tables = BlockTables()
        self._in_flight: deque[PendingStep] = deque()
        self._masks = GivenMasks()

    def do(self, data: memoryview) -> bool:
        """Do what a message says; return whether it is the last one."""
        message = decoded(data)
        match message:
            case Step():
                self._submit(message)
            case Masks():
                self._masks.data = message.data
                if self._in_flight:
                    self._in_flight[-1].sample()
            case Logits():
                self._wait(0)
                self._runner.logits(message.token_ids, chunk_tokens=message.chunk_tokens)
            case Rest():
                self._wait(0)
                self._runner.rest(message.free_blocks)
            case End():
                self._wait(0)
                self._runner.close()
        return isinstance(message, End)

    def _submit(self, step: Step) -> None:
        batch = batch_of(step, self._tables, self._masks if step.has_masks else None)
        try:
            self._in_flight.append(self._runner.submit(batch))
        except EngineError:
            return  # the step contradicts itself: rank 0 says so, and goes on
        self._wait(_STEPS_AHEAD)

    def _wait(self, most: int) -> None:
        """Wait for steps until so many are in flight, as rank 0 does for their tokens."""
        while len(self._in_flight) > most:
            self._in_flight.popleft().wait()
