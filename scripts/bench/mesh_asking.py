"""Answers of a mesh whose every token has its time, and the requests that are asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count, pairwise


@dataclass
class Run:
    """What was seen of answers."""

    texts: dict[str, list[int]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)

    def gap(self, after: float = 0.0) -> float:
        gaps = [
            later - earlier
            for times in self.times.values()
            for earlier, later in pairwise(times)
            if later > after
        ]
        return max(gaps, default=0.0)


class Asking:
    """An engine over a runner, driven here so that every token has its time."""

    def __init__(self, runner, options) -> None:
        from zse.engine.core import EngineCore

        self.core, self._numbers = EngineCore(runner, options, eos_token_ids=()), count()

    def ask(self, run: Run, prompt, **params) -> None:
        from zse.engine.request import Request, SamplingParams

        name = str(next(self._numbers))
        run.texts[name], run.times[name] = [], []
        values = {"temperature": 0.0, "ignore_eos": True, **params}
        self.core.add_request(
            Request(request_id=name, prompt_token_ids=list(prompt), params=SamplingParams(**values))
        )

    def step(self, *runs: Run) -> None:
        for event in self.core.step():
            if event.token_id is None:
                continue
            for run in runs:
                if event.request_id in run.texts:
                    run.texts[event.request_id].append(event.token_id)
                    run.times[event.request_id].append(time.monotonic())

    def finish(self, run: Run) -> None:
        while self.core.has_work:
            self.step(run)


def requests(streams: int, tokens: int):
    for number in range(streams):
        params = {"max_tokens": tokens}
        if number % 2:
            params |= {"temperature": 0.8, "seed": number}
        yield [3 + (7 * number + place) % 1500 for place in range(4 + number)], params


def wait_until(condition, seconds: float = 20.0) -> float:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise SystemExit("the mesh did not come to rest")
        time.sleep(0.005)
    return time.monotonic() - begun
