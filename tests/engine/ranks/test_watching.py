"""When ranks are said to get nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from zse.engine.ranks.shared import Receiver, Sender, SharedMemory
from zse.engine.ranks.watching import Progress, state_of
from zse.kernels.native.library import load


def test_ranks_without_work_may_take_their_time_and_those_with_some_may_not() -> None:
    shared = SharedMemory()
    sender = Sender(shared, load(), 2, lambda: None)
    receiver = Receiver(shared, load(), 1, spin_ns=0)
    watched = Progress(shared, sender, 0.02)
    for _ in range(3):
        time.sleep(0.03)
        assert watched.look() is None  # there is nothing to do
    sender.send(b"work")
    assert watched.look() is None
    time.sleep(0.03)
    assert "no rank has moved" in (watched.look() or "")
    assert receiver.receive() is not None
    receiver.done()
    assert watched.look() is None


def test_a_process_that_is_stopped_is_known_by_its_state() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert state_of(process.pid) in "RSD"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert state_of(process.pid) == "T"
        process.kill()
    assert state_of(process.pid) == " "
