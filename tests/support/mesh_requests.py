"""Requests to a mesh, and waiting for what becomes of it."""

from __future__ import annotations

import random
import time


def requests_of(seed, count=6):
    rng = random.Random(seed)
    found = []
    for number in range(count):
        prompt = [rng.randrange(3, 1500) for _ in range(rng.randint(1, 40))]
        params = {"max_tokens": rng.randint(8, 30)}
        if number % 2:
            params |= {"temperature": 0.9, "seed": number, "top_p": 0.95, "repetition_penalty": 1.1}
        if number == 3:
            params |= {"logit_bias": {5: 2.0}, "frequency_penalty": 0.4}
        found.append((prompt, params))
    return found


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def all_ready(mesh):
    front = mesh.front
    return len(front._ready()) == len(front.duties)
