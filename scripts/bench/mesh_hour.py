"""A long run of a mesh on a busy machine: is anybody given up who is there?

`scripts/bench/mesh.py --minutes 60 --busy 4` runs it: answers that follow each other with rests
between them, beside so many processes that do nothing but take time. A failover here is a false
one, since nothing is broken; it is harmless where texts stay as they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SPIN = "while True: pass"
_TELL_SECONDS = 60.0


@contextmanager
def busy(processes: int):
    """Take the time of so many cores, as far as there are any."""
    spinning = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measure_quiet(
    front: Any, ask: Callable[[], tuple[float, int]], *, minutes: float, rest_seconds: float
) -> dict:
    """Ask again and again; ``ask`` returns the longest gap and how many texts were wrong."""
    begun = told = time.monotonic()
    before = front.num_failovers
    found: dict[str, Any] = {"rounds": 0, "wrong_answers": 0, "worst_gap_ms": 0.0}
    loads: list[float] = []
    while True:
        gap, wrong = ask()
        found["rounds"] += 1
        found["wrong_answers"] += wrong
        found["worst_gap_ms"] = max(found["worst_gap_ms"], round(gap * 1e3, 1))
        now = time.monotonic()
        found["minutes"] = round((now - begun) / 60, 1)
        found["false_failovers"] = front.num_failovers - before
        loads.append(os.getloadavg()[0])
        found["load_average"] = {
            "least": min(loads), "mean": round(sum(loads) / len(loads), 1), "most": max(loads)
        }  # fmt: skip
        if now - told > _TELL_SECONDS:
            told = now
            print(f"so far     {json.dumps(found)}", flush=True)
        if now - begun >= minutes * 60:
            return found
        time.sleep(rest_seconds)
