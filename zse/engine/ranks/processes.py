"""The processes of the other ranks, which can begin before it is known what they shall compute.

One thread starts them and lives as long as they do: the kernel kills them when it ends, as it does
with the process, however that ends. They open their devices at once and wait for their task.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from zse.engine.ranks.devices import devices_of, have_one_each
from zse.engine.ranks.shared import SharedMemory
from zse.environment import environment_of_children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.options import LoadOptions

_ALONE, _AMONG_ALL = "alone", "among-all"
_MAIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from zse.device.early import open_early; "
    f"open_early(sys.argv[2], is_only=sys.argv[3] == {_ALONE!r}); "
    "from {member} import main; main(sys.argv[4:])"
)
"""The same code from the same places, whatever put them on this process's path. The driver is woken
before anything else is imported."""


class RankProcesses:
    """Processes, a socket to each of them, and the pages that all have in common with rank 0.

    Args:
        devices: The name of each rank's device; the first is this process's own.
        member: The module whose ``main`` they are.
    """

    def __init__(self, devices: Sequence[str], *, member: str = "zse.engine.ranks.worker") -> None:
        self.devices = tuple(devices)
        self.shared = SharedMemory()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self.devices[1:]]
        self.sockets, self._theirs = [one for one, _ in pairs], [other for _, other in pairs]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._main = _MAIN.format(member=member)
        self._has_started = threading.Event()
        self._start_error: OSError | None = None
        self._watches: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zse-ranks", daemon=True)
        self._thread.start()

    def give_to(self, watch: Callable[[], None]) -> None:
        """Have the thread that started them watch them; they end when ``watch`` returns."""
        self._watches.put(watch)

    def start_error(self) -> OSError | None:
        """Wait until all have been started; return why one was not."""
        self._has_started.wait()
        return self._start_error

    def wait(self, deadline: float) -> None:
        """Wait until they have ended by themselves, to a time of ``time.monotonic`` at most."""
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def close(self) -> None:
        """End them, once whoever watches them has returned."""
        self._watches.put(None)
        self._thread.join()
        self.shared.close()

    def _run(self) -> None:
        try:
            try:
                self._start()
            except OSError as error:
                self._start_error = error
                return
            finally:
                for one in self._theirs:
                    one.close()
                self._has_started.set()
            if (watch := self._watches.get()) is not None:
                watch()
        finally:
            self.kill()
            for process in self.processes:
                process.wait()
            for one in self.sockets:
                one.close()

    def _start(self) -> None:
        path = json.dumps(sys.path)
        flags = ["-I", "-S"] if sys.flags.isolated else []
        flags += [flag for flag, is_set in (("-s", sys.flags.no_user_site),) if is_set]
        shown = _ALONE if have_one_each(self.devices) else _AMONG_ALL
        for device, theirs in zip(self.devices[1:], self._theirs, strict=True):
            fds = (self.shared.fd, theirs.fileno())
            arguments = [path, device, shown, str(os.getpid()), *map(str, fds)]
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *flags, "-c", self._main, *arguments],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    env=environment_of_children(),
                )
            )


def begin_processes(options: LoadOptions) -> RankProcesses:
    """Start the other ranks' processes, which open their devices while the model's file is opened.

    Whoever does not hand them to ``zse.engine.ranks.opening.open_ranks`` closes them.

    Raises:
        UsageError: The GPUs that are named are not as many as there are ranks.
        DeviceError: The device is unknown.
    """
    return RankProcesses(devices_of(options))
