"""Rank 0's side: gives the other ranks their task, watches them, and tells all what to do.

The thread that started their processes watches them. It sees a rank end by its descriptor and a
rank that is stopped by its state; one that still runs and does not move for long is told by what it
has done. Whichever it is, all ranks end then, and whoever waits is told why.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, cast

from zse.backends.ranks import Gift, Share
from zse.backends.types import StepBatch
from zse.engine.ranks.devices import options_of
from zse.engine.ranks.links import (
    Failed,
    Given,
    LeaderLink,
    Task,
    error_of,
    receive_note,
    send_note,
)
from zse.engine.ranks.messages import (
    BlockTables,
    End,
    Logits,
    Masks,
    Rest,
    encoded,
    message_of,
)
from zse.engine.ranks.processes import RankProcesses
from zse.engine.ranks.shared import Sender
from zse.engine.ranks.watching import Progress, state_of
from zse.errors import DeviceError, RankError
from zse.kernels.native.library import load
from zse.options import load_fields

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.backends.types import TokenMasks
    from zse.format.reader import ZSEReader
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.engine")
_LOOK_SECONDS = 0.1
_STOPPED_SECONDS = 0.6
"""How long a rank may be stopped: a debugger or a signal that is taken back does less."""
_END_SECONDS = 2.0
"""How long ranks are given to end by themselves when the model is closed."""


class RankGroup:
    """The ranks of one model. Rank 0 is this process.

    Args:
        reader: The model's open file.
        options: How it is loaded; those of the ranks say how many there are.
        devices: The name of each rank's device.
        ends: Layer behind each stage; the ranks of a stage follow each other, of the last first.
        cache_dir: Of this machine's kernel packs and tables.
        member: The module whose ``main`` the other ranks are.
        layers: What they compute of a model that several machines share; see ``Task``.
        processes: Of the other ranks, where they were begun before; they are this group's now.

    Raises:
        DeviceError: A rank could not be started.
    """

    def __init__(
        self,
        reader: ZSEReader,
        options: LoadOptions,
        devices: Sequence[str],
        ends: Sequence[int] = (),
        *,
        cache_dir: Path | None = None,
        member: str = "zse.engine.ranks.worker",
        layers: Sequence[int] = (),
        processes: RankProcesses | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self._ranks = processes or RankProcesses(self.devices, member=member)
        self.failure: RankError | None = None
        self._timeout_seconds = options.ranks.timeout_seconds
        self._shared = self._ranks.shared
        self._sockets = self._ranks.sockets
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_ending = False
        """Whether the ranks were told to end: those that do have not failed."""
        self._is_closing = False
        self._is_over = False
        """Whether nobody has to be watched any more: ranks end by themselves until then."""
        self._lock = threading.Lock()
        self._tell: Callable[[RankError], None] | None = None
        share = Share(rank=0, ranks=len(self.devices))
        self.link = LeaderLink(share, self._shared, self._sockets, self.check)
        library = load(options.device.cpu_instructions)
        self._sender = Sender(self._shared, library, share.ranks, self.check)
        self._tables = BlockTables()
        self._ranks.give_to(self._watch_all)
        if (error := self._ranks.start_error()) is not None:
            self.close()
            raise DeviceError(f"no process of a rank could be started: {error}")
        self._give_tasks(reader, options, ends, layers, cache_dir)

    def _give_tasks(
        self,
        reader: ZSEReader,
        options: LoadOptions,
        ends: Sequence[int],
        layers: Sequence[int],
        cache_dir: Path | None,
    ) -> None:
        file = reader.share_file()
        spin = spin_of(len(self.devices))
        try:
            for rank, to in enumerate(self._sockets, start=1):
                task = Task(
                    str(file.path),
                    cast("dict[str, Any]", load_fields(options_of(options, self.devices, rank))),
                    None if cache_dir is None else str(cache_dir),
                    rank,
                    list(self.devices),
                    list(ends),
                    list(layers),
                    spin,
                )
                with contextlib.suppress(OSError):  # it has ended: the thread sees that
                    send_note(to, task, [file.fd])
        finally:
            file.close()

    # --- what all ranks do -----------------------------------------------------------------------

    def submit(self, batch: StepBatch) -> StepBatch:
        """Send a step to the others; return it as rank 0 computes it."""
        self._sender.send(encoded(message_of(batch, self._tables)))
        if batch.masks is None:
            return batch
        rows = sum(row.is_masked for rows in batch.sampling for row in rows)
        return StepBatch(
            chunks=batch.chunks,
            sampling=batch.sampling,
            masks=_ToldMasks(batch.masks, rows, self._sender),
        )

    def logits(self, token_ids: Sequence[int], chunk_tokens: int) -> None:
        self._sender.send(encoded(Logits(list(token_ids), chunk_tokens)))

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        self._sender.send(encoded(Rest([list(each) for each in free_blocks])))

    def tell(self, message: bytes) -> None:
        """Send what a ``member`` of another kind reads."""
        self._sender.send(message)

    def wait_until_done(self) -> None:
        """Wait until the other ranks have done all that they were sent; fails as ``check``."""
        self._sender.wait_until_done()

    # --- what becomes of them --------------------------------------------------------------------

    def check(self) -> None:
        """Refuse to go on when the ranks have failed, with what happened."""
        if self.failure is not None:
            raise RankError(self.failure.message, hint=self.failure.hint)

    def when_failed(self, tell: Callable[[RankError], None]) -> None:
        """Have a failure told to somebody, at once if there was one; from another thread."""
        with self._lock:
            self._tell, failure = tell, self.failure
        if failure is not None:
            tell(failure)

    def close(self) -> None:
        """End the other ranks. No step may be running."""
        if self._is_closing:
            return
        self._is_ending = True
        with contextlib.suppress(DeviceError):
            self._sender.send(encoded(End()))
        self._is_closing = True
        deadline = time.monotonic() + (_END_SECONDS if self.failure is None else 0)
        self._ranks.wait(deadline)
        self._is_over = True
        os.eventfd_write(self._wake_fd, 1)
        self._ranks.close()
        os.close(self._wake_fd)

    def fail(self, message: str, hint: str = "") -> None:
        """End all ranks for a reason; only the first one counts."""
        with self._lock:
            if self._is_closing or self.failure is not None:
                return
            hint = hint or "Look at the log of that rank; --restart-ranks starts them all again."
            failure = self.failure = RankError(message, hint=hint)
            tell = self._tell
        _LOG.error("%s: all ranks end", message)
        self._shared.break_off()
        self._ranks.kill()
        self.link.wake()
        if tell is not None:
            tell(failure)

    # --- the thread that watches them ------------------------------------------------------------

    def _watch_all(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # nobody would watch them any more
            self.fail(f"the ranks cannot be watched: {error}")
            raise

    def _watch(self) -> None:
        poll = select.poll()
        pidfds = {os.pidfd_open(process.pid): rank for rank, process in self._numbered()}
        talking = {one.fileno(): rank for rank, one in enumerate(self._sockets, start=1)}
        for fd in (*pidfds, *talking, self._wake_fd):
            poll.register(fd, select.POLLIN)
        watched = Progress(self._shared, self._sender, self._timeout_seconds)
        stopped: dict[int, float] = {}
        try:
            while not self._is_over and self.failure is None:
                ready = [fd for fd, _ in poll.poll(_LOOK_SECONDS * 1000)]
                for fd in ready:
                    if fd in talking and not self._hear(talking[fd]):
                        poll.unregister(fd)
                        del talking[fd]
                for fd in ready:
                    if fd in pidfds and self.failure is None:
                        poll.unregister(fd)
                        self._report_end(pidfds[fd])
                self._look_for_stopped(stopped)
                if (told := watched.look()) is not None:
                    self.fail(told)
        finally:
            for fd in pidfds:
                os.close(fd)

    def _numbered(self) -> list[tuple[int, subprocess.Popen[bytes]]]:
        return list(enumerate(self._ranks.processes, start=1))

    def _hear(self, rank: int) -> bool:
        """Take what a rank says; return whether it may say more."""
        received = receive_note(self._sockets[rank - 1])
        if received is None:
            return False
        note, descriptors = received
        if isinstance(note, Given):
            self.link.put(rank, Gift(note.payload, tuple(descriptors)))
        elif isinstance(note, Failed):
            told = error_of(self._name(rank), note)
            self.fail(told.message, told.hint)
            return False
        return True

    def _report_end(self, rank: int) -> None:
        code = self._ranks.processes[rank - 1].wait()
        if self._is_ending and not code:
            return
        how = f"ended with exit code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
        self.fail(f"{self._name(rank)} {how}")

    def _look_for_stopped(self, since: dict[int, float]) -> None:
        now = time.monotonic()
        for rank, process in self._numbered():
            if state_of(process.pid) not in "tT":
                since.pop(rank, None)
            elif now - since.setdefault(rank, now) >= _STOPPED_SECONDS:
                self.fail(f"{self._name(rank)} was stopped and does not go on")

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.devices[rank]})"


class _ToldMasks:
    """Masks that the other ranks are told of as they are written."""

    def __init__(self, masks: TokenMasks, num_rows: int, sender: Sender) -> None:
        self._masks, self._num_rows, self._sender = masks, num_rows, sender

    def write(self, address: int, row_bytes: int) -> None:
        self._masks.write(address, row_bytes)
        self._sender.send(encoded(Masks(ctypes.string_at(address, self._num_rows * row_bytes))))


def spin_of(ranks: int) -> int:
    """Return how long ranks look for their next step before they sleep: not where cores are few."""
    cores = len(os.sched_getaffinity(0))
    return 200_000 if cores >= 2 * ranks else 0
