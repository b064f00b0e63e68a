"""CPU time that the server spends on a streamed token, at several numbers of streams.

    python scripts/bench/http_cost.py --streams 1 8 32 128 --against OLD_TREE

The engine is scripted: a token for every stream each 20 ms, as a GPU would make them, and no other
work (``paced_server.py``). What is counted is the CPU time of all threads of the server process,
user and system, between two moments within the streams, by the tokens that came meanwhile. That
includes the scripted engine's own sleep, waking up and list of events, which no server pays whose
engine computes: the column "pacing" has them alone, in a process that does nothing else, in turns
with the servers, and "server" is what is left without them. Two columns are floors, in turns, too:
a thread that sleeps as long and writes the same bytes to as many sockets, in Python
(``bare_server.py``), and in C (``bare_server.c``): what the kernel takes for the two calls.
With ``--against`` a second tree of the project (a git worktree) is measured in turns with this one,
so that what else the machine does meets both. It only ever adds to what is counted, and so does a
process whose memory happens to lie badly: each round has processes of its own, and the least of the
rounds counts. Prints a table, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from machine import machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("paced_server.py")
BARE_SERVER = Path(__file__).with_name("bare_server.py")
BARE_SOURCE = Path(__file__).with_name("bare_server.c")
FLOOR, FLOOR_IN_C, PACING = "floor", "in C", "pacing"
WARM_SECONDS = 1.0
SETTLE_SECONDS = 4.0
"""Behind its start the server imports the library of its metrics."""
NANOSECONDS = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another tree of the project")
    options = parser.parse_args()
    trees = {"this": ROOT} | ({"other": options.against.resolve()} if options.against else {})
    found = measure(options, trees)
    print_table(found)
    facts = {"subject": "http_cost", "rounds": options.rounds, "seconds": options.seconds}
    costs = {
        f"{name}_us_per_token": {str(n): round(v, 1) for n, v in of.items()}
        for name, of in found.items()
    }
    print(json.dumps({**facts, **machine_facts(), **costs}))


def measure(options: argparse.Namespace, trees: dict[str, Path]) -> dict[str, dict[int, float]]:
    """Return the microseconds a token, by tree and number of streams; floors and pacing last."""
    costs: dict[str, dict[int, list[float]]] = {}

    def note(name: str, number: int, cost: float) -> None:
        costs.setdefault(name, {}).setdefault(number, []).append(cost)

    with tempfile.TemporaryDirectory() as folder:
        commands = {name: ([sys.executable, str(SERVER)], of) for name, of in trees.items()}
        commands[FLOOR] = ([sys.executable, str(BARE_SERVER)], ROOT)
        commands[FLOOR_IN_C] = (bare_server_in_c(Path(folder)), ROOT)
        for _ in range(options.rounds):
            with contextlib.ExitStack() as stack:
                servers = {
                    name: stack.enter_context(serving(*command))
                    for name, command in commands.items()
                }
                for number in options.streams:
                    for name, (process, port) in servers.items():
                        cost = asyncio.run(cost_of(process.pid, port, number, options.seconds))
                        note(name, number, cost)
                    note(PACING, number, cost_of_pacing(number, options.seconds))
    return {name: {number: min(each) for number, each in of.items()} for name, of in costs.items()}


def bare_server_in_c(folder: Path) -> list[str]:
    """Build the floor in C; return how it is run."""
    from bare_server import frame_of_a_token

    from zse.kernels.native.build import compiler_command

    program = folder / "bare_server"
    options = ["-O2", "-pthread", str(BARE_SOURCE), "-o", str(program)]
    subprocess.run([*compiler_command(), *options], check=True)
    return [str(program), frame_of_a_token().decode()]


def cost_of_pacing(num_streams: int, seconds: float) -> float:
    """Return the microseconds of CPU that the engine alone takes for a token."""
    command = [sys.executable, str(SERVER), str(num_streams), str(seconds)]
    told = subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return float(told.stdout)


def print_table(found: dict[str, dict[int, float]]) -> None:
    print("CPU microseconds a streamed token, paced at 20 ms; server is this without pacing")
    names = [*found, "ratio", "server"]
    print(f"{'streams':>8}" + "".join(f"{name:>10}" for name in names))
    for number in next(iter(found.values())):
        cells = [of[number] for of in found.values()]
        ratio = f"{cells[0] / cells[1]:10.2f}"  # to the other tree, or to the floor
        row = "".join(f"{cell:10.1f}" for cell in cells)
        print(f"{number:>8}{row}{ratio}{cells[0] - found[PACING][number]:10.1f}")


@contextlib.contextmanager
def serving(command: list[str], tree: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server on the code of a tree; give its process and its port once it is warm."""
    with tempfile.TemporaryDirectory() as home, Path(home, "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stderr=log,
            # Keys of whoever runs this would keep the client out.
            env={**os.environ, "PYTHONPATH": str(tree), "ZSE_HOME": home},
            cwd=tree,
        )
        try:
            yield process, wait_for_port(process, Path(log.name))
        finally:
            process.kill()
            process.wait()


def wait_for_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Return the port of a server, once it has imported what it imports after its start."""
    port = 0
    while process.poll() is None:
        time.sleep(0.1)
        lines = [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
        port = next((line["port"] for line in lines if "port" in line), 0)
        if any(line["message"] == "ready" for line in lines):
            time.sleep(SETTLE_SECONDS)
            return port
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


async def cost_of(pid: int, port: int, num_streams: int, seconds: float) -> float:
    """Return the microseconds of CPU that the server spends on a token of so many streams."""
    num_tokens = int((seconds + 3 * WARM_SECONDS) / 0.02)
    counter = [0]
    tasks = [
        asyncio.create_task(read_stream(port, num_tokens, counter)) for _ in range(num_streams)
    ]
    await asyncio.sleep(WARM_SECONDS)
    num_before, cpu_before = counter[0], cpu_seconds(pid)
    await asyncio.sleep(seconds)
    num_after, cpu_after = counter[0], cpu_seconds(pid)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if num_after == num_before:
        raise SystemExit(f"no tokens came: {[task for task in tasks if task.done()][:1]}")
    return (cpu_after - cpu_before) / (num_after - num_before) * 1e6


async def read_stream(port: int, num_tokens: int, counter: list[int]) -> None:
    """Read one streamed answer and count its frames."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "hello there"}],
            "max_completion_tokens": num_tokens,
            "stream": True,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        while data := await reader.read(65536):
            counter[0] += data.count(b"data: {")
    finally:
        writer.close()


def cpu_seconds(pid: int) -> float:
    """Return the time on a CPU of all threads of a process, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / NANOSECONDS


if __name__ == "__main__":
    main()
