"""When the collector of cycles works, in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path

from zse.settings import subprocess_environment

ROOT = str(Path(__file__).parents[2])
TELLING = """
import gc, json, signal, sys
def tell(*_):
    from zse.serve.garbage_collection import SERVING
    told = {"as_servers_do": gc.get_threshold() == SERVING, "frozen": gc.get_freeze_count()}
    print(json.dumps({"message": "collector", **told}), file=sys.stderr, flush=True)
signal.signal(signal.SIGUSR1, tell)
from zse.serve.__main__ import main
sys.exit(main())
"""
CODE = """
import gc
from zse.serve import garbage_collection
runs = lambda: sum(generation["collections"] for generation in gc.get_stats())
garbage_collection.hold_off()
before = runs()
kept = [[] for _ in range(100_000)]
held_off = runs() - before
garbage_collection.resume()
frozen = gc.get_freeze_count()
more = [[] for _ in range(100_000)]
print(held_off, frozen > 100_000, gc.get_threshold() == garbage_collection.SERVING, runs() > before)
before = runs()
for step in range(500):
    made = [[] for _ in range(10_000)]
    del made
print(runs() - before)
"""


def test_nothing_is_collected_until_the_start_is_over_and_what_came_before_never():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        env=subprocess_environment(PYTHONPATH=ROOT),
    )
    assert done.stdout.split()[:4] == ["0", "True", "True", "True"]
    assert int(done.stdout.split()[4]) <= 3  # of 500: what a step lets go of is no reason to look


def test_a_server_that_is_ready_collects_what_requests_leave(start_command, bytes_model):
    server = start_command("-c", TELLING, str(bytes_model), "--device", "cpu", "--port", "0")
    server.wait_for_line("ready")
    server.process.send_signal(signal.SIGUSR1)
    told = server.wait_for_line("collector")
    assert told["as_servers_do"]
    assert told["frozen"] > 10_000
