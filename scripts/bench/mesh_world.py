"""What a mesh is measured in: network namespaces, the wire between them, and a node in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from child_processes import children_of

ROOT = Path(__file__).resolve().parents[2]


def why_not() -> str:
    if os.geteuid():
        return "it needs root, for network namespaces"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    if shutil.which("ip") is None:
        return "there is no `ip`"
    name = namespace(os.getpid(), 0)
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"namespaces cannot be made: {done.stderr.decode().strip()}" if done.returncode else ""


def namespace(wire: int, number: int) -> str:
    """Return the name of the namespace of the front (0) or a node of a wire."""
    return f"zsem{wire}-{number}"


class Wire:
    """Namespaces, of the front and of each node, and the switch between them."""

    def __init__(self, delay_ms: float, mbit: float, nodes: int) -> None:
        self.names = [namespace(os.getpid(), number) for number in range(nodes + 1)]
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        folder = Path(tempfile.mkdtemp())
        program = folder / "mesh_wire"
        source = str(ROOT / "scripts" / "bench" / "mesh_wire.c")
        subprocess.run(
            [sys.executable, "-m", "ziglang", "cc", "-O2", source, "-o", str(program)], check=True
        )
        self.process = subprocess.Popen(
            [str(program), str(delay_ms), str(mbit), *self.names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("the wire does not start")
        shutil.rmtree(folder)
        for number, name in enumerate(self.names):
            for words in (
                ["link", "set", "lo", "up"],
                ["link", "set", "eth0", "mtu", "9000", "up"],
                ["addr", "add", f"10.78.0.{number + 1}/24", "dev", "eth0"],
                ["route", "add", "224.0.0.0/4", "dev", "eth0"],
            ):
                subprocess.run(["ip", "-n", name, *words], check=True)

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close_all()

    def close_all(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Nodes:
    """Processes, one in each namespace; numbered from 1."""

    def __init__(self, folder: Path, wire: int, *, discovery: bool = False, ranks: int = 1) -> None:
        self._folder, self._wire, self._discovery = folder, wire, discovery
        self._ranks = ranks
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._starts: dict[int, int] = {}

    def start(self, number: int) -> None:
        address = f"10.78.0.{number + 1}:7700"
        words = [sys.executable, "-m", "zse", "mesh", "start", "--listen", address]
        words += ["--name", f"n{number}", "--threads", "1", "--memory-gib", "1"]
        words += ["--discovery" if self._discovery else "--no-discovery"]
        words += ["--tensor-parallel", str(self._ranks)]
        self._starts[number] = self._starts.get(number, 0) + 1
        with (self._folder / f"n{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                ["ip", "netns", "exec", namespace(self._wire, number), *words],
                stdout=log, stderr=log, cwd=ROOT,
            )  # fmt: skip

    def stop(self, number: int) -> None:
        """Kill a node, and forget what it said."""
        self.processes[number].kill()
        self.processes[number].wait()
        (self._folder / f"n{number}.log").unlink()
        self._starts[number] = 0

    def is_listening(self, number: int) -> bool:
        log = self._folder / f"n{number}.log"
        return log.exists() and log.read_bytes().count(b" listens at ") >= self._starts[number]

    def signal(self, number: int, which: int) -> None:
        self.processes[number].send_signal(which)

    def signal_ranks(self, number: int, which: int) -> None:
        """Send a signal to all processes of a node but its own."""
        for rank in children_of(self.processes[number].pid):
            with suppress(ProcessLookupError):
                os.kill(rank, which)

    def cpu_seconds(self) -> float:
        """Return what all nodes have taken of processors."""
        return sum(map(self.cpu_seconds_of, self.processes))

    def cpu_seconds_of(self, number: int) -> float:
        process = self.processes[number]
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


class PipedWire:
    """The wire as the front's process tells it."""

    def tell(self, words: str) -> None:
        with os.fdopen(os.dup(3), "w") as pipe:
            pipe.write(words + "\n")
