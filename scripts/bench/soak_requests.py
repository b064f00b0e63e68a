"""The requests of the soak, drawn from a seed, and what became of them."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zse.engine.request import SamplingParams

if TYPE_CHECKING:
    import argparse

    from zse.engine.output import Delta

NUM_PREFIXES = 8
GREEDY_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One request and when it is cancelled."""

    number: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str
    cancel_after: int | None
    """Deltas after which it is cancelled; 0 before the first, None never."""

    @property
    def is_greedy(self) -> bool:
        """Whether its answer can be compared with that of a run alone."""
        return self.params.temperature == 0.0


@dataclass(kw_only=True)
class Outcome:
    """What came back for one request."""

    plan: Plan
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[int, str] = field(default_factory=dict)
    num_deltas: int = 0
    is_cancelled: bool = False
    problem: str = ""

    @property
    def is_ended(self) -> bool:
        """Whether every choice has ended."""
        return len(self.reasons) == self.plan.params.n

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing that was to come."""
        return not self.problem and (self.is_cancelled or self.is_ended)

    def note(self, delta: Delta) -> None:
        self.num_deltas += 1
        if delta.index in self.reasons:
            self.problem = f"request {self.plan.number}: choice {delta.index} goes on past its end"
        self.tokens[delta.index].extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.reasons[delta.index] = delta.finish_reason

    def check(self) -> None:
        """Check lengths and reasons of an answer that was not cancelled."""
        if self.problem or self.is_cancelled:
            return
        params = self.plan.params
        for index in range(params.n):
            reason, count = self.reasons.get(index), len(self.tokens[index])
            most = params.max_tokens or 0
            fits = count == most if reason == "length" else params.min_tokens <= count <= most
            if reason not in ("length", "stop") or not fits:
                self.problem = f"request {self.plan.number}: {count} tokens, ended by {reason}"


def make_plans(options: argparse.Namespace, vocab_size: int) -> list[Plan]:
    """Draw the requests.

    Args:
        options: requests, cancel, longest (tokens), seed.
        vocab_size: Token ids are below it.
    """
    draw = random.Random(options.seed)
    half = options.longest // 2
    prefixes = [
        _tokens(draw, draw.randint(half // 4, half // 2), vocab_size) for _ in range(NUM_PREFIXES)
    ]
    plans = []
    for number in range(options.requests):
        prompt = list(draw.choice(prefixes)) if draw.random() < 0.5 else []
        prompt += _tokens(draw, draw.randint(1, half - len(prompt)), vocab_size)
        most = draw.randint(1, options.longest - half)
        cancelled = draw.random() < options.cancel
        plans.append(
            Plan(
                number=number,
                prompt=prompt,
                params=_params(draw, most),
                priority=draw.choice((0, 0, 0, -1, 1, 5)),
                cache_salt=draw.choice(("", "", "", "other")),
                cancel_after=draw.randint(0, max(most // 2, 1)) if cancelled else None,
            )
        )
    return plans


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Return the first place where two answers of one length differ; None when they are equal."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((place for place, (a, b) in pairs if a != b), None)


def _params(draw: random.Random, most: int) -> SamplingParams:
    if draw.random() < GREEDY_SHARE:
        return SamplingParams(
            max_tokens=most, temperature=0.0, ignore_eos=True, logprobs=draw.choice((None, None, 3))
        )
    return SamplingParams(
        max_tokens=most,
        temperature=draw.choice((0.3, 0.8, 1.0, 1.5)),
        top_k=draw.choice((0, 0, 5, 40)),
        top_p=draw.choice((1.0, 0.9, 0.5)),
        min_p=draw.choice((0.0, 0.0, 0.05)),
        repetition_penalty=draw.choice((1.0, 1.0, 1.2)),
        presence_penalty=draw.choice((0.0, 0.0, 0.5)),
        frequency_penalty=draw.choice((0.0, 0.0, 0.5)),
        seed=draw.choice((None, draw.randrange(1 << 40))),
        stop=draw.choice(((), (), ("the", "."))),
        ignore_eos=draw.choice((True, False)),
        min_tokens=min(draw.choice((0, 0, 4)), most),
        logprobs=draw.choice((None, None, 0, 5)),
        n=draw.choice((1, 1, 1, 2, 3)),
        logit_bias=draw.choice(({}, {}, {5: 4.0, 9: -100.0})),
    )


def _tokens(draw: random.Random, count: int, vocab_size: int) -> list[int]:
    return [draw.randrange(vocab_size) for _ in range(count)]
