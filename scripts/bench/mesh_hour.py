"""A long run of a mesh on a busy machine: is anybody given up who is there?

`scripts/bench/mesh.py --minutes 60 --streams 2 --least-load 4` runs it: two answers at any time,
each followed by the next at once, beside as many processes that do nothing but take time as it
takes for the load average to be at least that. A failover here is a false one, since nothing is
broken; it is harmless where texts stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from mesh_asking import Asking, Run

_SPIN = "while True: pass"
_TELL_SECONDS = 60.0
_LOAD_SECONDS = 10.0
_MOST_ABOVE = 2.0
"""Of the load average over the least one: then there is a process too many."""


class Load:
    """Keeps the load average from falling below a value, and notes it every ten seconds.

    Args:
        least: The value.
        busy: Processes that only take time, from the beginning. They are of the mesh's own session:
            where a system shares processors out among sessions first, others' work takes less.
    """

    def __init__(self, least: float, busy: int) -> None:
        self._least, self._busy = least, busy
        self._spinning: list[subprocess.Popen[bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.averages: list[float] = []
        self.most_spinning = 0

    def __enter__(self) -> Load:
        for _ in range(self._busy):
            self._spin()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for process in self._spinning:
            process.kill()
            process.wait()

    def _run(self) -> None:
        while not self._stop.wait(_LOAD_SECONDS if self.averages else 0):
            self.averages.append(os.getloadavg()[0])
            if self.averages[-1] < self._least:
                self._spin()
            elif len(self._spinning) > self._busy and self.averages[-1] > self._least + _MOST_ABOVE:
                process = self._spinning.pop()
                process.kill()
                process.wait()

    def _spin(self) -> None:
        self._spinning.append(subprocess.Popen([sys.executable, "-c", _SPIN]))
        self.most_spinning = max(self.most_spinning, len(self._spinning))

    def told(self) -> dict[str, float]:
        averages = self.averages or [os.getloadavg()[0]]
        below = sum(average < self._least for average in averages)
        return {
            "least": round(min(averages), 1),
            "mean": round(sum(averages) / len(averages), 1),
            "most": round(max(averages), 1),
            "samples": len(averages),
            "samples_below_the_least_wanted": below,
            "most_spinning_processes": self.most_spinning,
        }


class Streams:
    """As many answers at any time as there are requests: each is asked again when it has ended."""

    def __init__(self, asking: Asking, asked: list, expected: list[list[int]]) -> None:
        self._asking, self._asked, self._expected = asking, asked, expected
        self._runs = [self._ask(place) for place in range(len(asked))]
        self.answers = self.wrong_answers = self.wrong_tokens = 0
        self.worst_gap = 0.0

    def _ask(self, place: int) -> Run:
        prompt, params = self._asked[place]
        run = Run()
        self._asking.ask(run, prompt, **params)
        return run

    def step(self) -> None:
        """Do a step, and ask again for what has ended."""
        self._asking.step(*self._runs)
        for place, run in enumerate(self._runs):
            text = next(iter(run.texts.values()))
            if len(text) < self._asked[place][1]["max_tokens"]:
                continue
            wrong = sum(a != b for a, b in zip(text, self._expected[place], strict=True))
            self.answers += 1
            self.wrong_tokens += wrong
            self.wrong_answers += wrong > 0
            self.worst_gap = max(self.worst_gap, run.gap())
            self._runs[place] = self._ask(place)


def measure_hour(front: Any, streams: Streams, load: Load, *, minutes: float) -> dict[str, Any]:
    """Let streams go on for so long; return what was seen of them, and of whom was given up."""
    begun = told = time.monotonic()
    before = front.num_failovers
    found: dict[str, Any] = {}
    while True:
        lost = _step(streams)
        now = time.monotonic()
        is_over = lost or now - begun >= minutes * 60
        if not is_over and now - told < _TELL_SECONDS:
            continue
        told = now
        found = {
            "minutes": round((now - begun) / 60, 1),
            "answers": streams.answers,
            "wrong_answers": streams.wrong_answers,
            "wrong_tokens": streams.wrong_tokens,
            "requests_lost": lost,
            "false_failovers": front.num_failovers - before,
            "worst_gap_ms": round(streams.worst_gap * 1e3, 1),
            "load_average": load.told(),
        }
        if is_over:
            return found
        print(f"so far     {json.dumps(found)}", flush=True)


def _step(streams: Streams) -> int:
    """Do a step; return how many requests were lost with it."""
    from zse.errors import ZSEError

    try:
        streams.step()
    except ZSEError as error:
        print(f"lost       {error}", flush=True)
        return len(streams._runs)
    return 0
