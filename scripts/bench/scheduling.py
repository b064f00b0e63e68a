"""What planning a step costs: CPU time of the scheduler, with no model behind it.

    python scripts/bench/scheduling.py --sequences 1,32,128

A device that looks ahead is imitated: each step is planned while the one before it is in flight.
Afterwards the same with ``--waiting`` sequences in line that find no slot. Prints microseconds a
step, the median of ``--rounds`` rounds, and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from engine_runs import whole_numbers
from machine import machine_facts

from zse.engine.intake import rank_of
from zse.engine.request import Request, SamplingParams
from zse.engine.scheduler import Scheduler
from zse.engine.sequence import Sequence
from zse.kv.cache import KVCache

BLOCK_SIZE = 32
NUM_PROMPT_TOKENS = 128
TOKEN = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sequences", type=whole_numbers, default=[1, 32, 128])
    parser.add_argument("--waiting", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500, help="of one round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rows = []
    for num_running in options.sequences:
        for num_waiting in (0, options.waiting):
            seconds = [
                planning_seconds(num_running, num_waiting, options.steps)
                for _ in range(options.rounds)
            ]
            each = round(statistics.median(seconds) / options.steps * 1e6, 2)
            rows.append({"running": num_running, "waiting": num_waiting, "step_us": each})
            print(f"{num_running:>5} running {num_waiting:>5} waiting {each:>9.2f} us a step")
    print(json.dumps({"subject": "scheduling", **machine_facts(), "rows": rows}))


def planning_seconds(num_running: int, num_waiting: int, num_steps: int) -> float:
    """Return the CPU time of planning so many steps of sequences that all decode."""
    blocks_each = (NUM_PROMPT_TOKENS + num_steps) // BLOCK_SIZE + 2
    cache = KVCache(num_blocks=blocks_each * num_running, block_size=BLOCK_SIZE)
    budget = NUM_PROMPT_TOKENS * num_running
    scheduler = Scheduler(cache, max_batch_tokens=budget, max_sequences=num_running)
    for arrival in range(num_running + num_waiting):
        scheduler.add(sequence_of(arrival))
    in_flight = scheduler.schedule_step()
    scheduler.submitted(in_flight)
    seconds = 0.0
    for _ in range(num_steps):
        began = time.thread_time()
        ahead = scheduler.schedule_ahead()
        scheduler.submitted(ahead)
        scheduler.done()
        seconds += time.thread_time() - began
        for chunk in in_flight:
            chunk.sequence.answered(1, 1)
            chunk.sequence.append(TOKEN)
        in_flight = ahead
    assert len(in_flight) == num_running
    return seconds


def sequence_of(arrival: int) -> Sequence:
    prompt = [arrival] * NUM_PROMPT_TOKENS
    params = SamplingParams(max_tokens=1 << 20)
    return Sequence(
        request=Request(request_id=str(arrival), prompt_token_ids=prompt, params=params),
        index=0,
        seed=0,
        max_tokens=1 << 20,
        end_token_ids=frozenset(),
        rank=rank_of(priority=0, arrival=arrival, step=0, aging_steps=64),
        prompt_token_ids=prompt,
        token_ids=list(prompt),
    )


if __name__ == "__main__":
    main()
