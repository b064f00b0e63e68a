"""Nodes of a mesh as processes: imported once, then forked, so that four start in the time of one.

Run as a program it starts as many as it is told to, writes a line ``NAME PID ADDRESS`` for each and
waits; its end is theirs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class ForkedNodes:
    """Processes by their names, n0, n1 ...; used as a context."""

    def __init__(self, count, secret, *, extra=()):
        environment = {**os.environ, "ZSE_MESH_SECRET": secret, "OMP_NUM_THREADS": "1"}
        self._parent = subprocess.Popen(
            [sys.executable, __file__, str(count), *extra],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.pids, self.addresses = {}, {}
        for _ in range(count):
            name, pid, address = self._parent.stdout.readline().split()
            self.pids[name], self.addresses[name] = int(pid), address

    def signal(self, name, number):
        os.kill(self.pids[name], number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._parent.communicate(timeout=60)


def main(count, tensor_parallel=0):
    from zse.engine.opening import open_file
    from zse.kernels.native.library import load
    from zse.mesh.serving import NodeStart, run_node
    from zse.options import load_options
    from zse.settings import load_settings

    settings = load_settings()
    open_file(
        "tiny", load_options(device="cpu"), settings
    ).close()  # converted once, not four times
    load()
    for number in range(count):
        if os.fork():
            continue
        name = f"n{number}"

        def tell(text, name=name):
            sys.stdout.write(f"{name} {os.getpid()} {text.rpartition(' ')[2]}\n")
            sys.stdout.flush()

        code = 1
        try:
            start = NodeStart(name=name, is_found=False, threads=1, memory_gib=1,
                              tensor_parallel=tensor_parallel)  # fmt: skip
            code = run_node(settings, start, tell)
        finally:
            os._exit(code)
    sys.stdin.read()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(*map(int, sys.argv[1:]))
