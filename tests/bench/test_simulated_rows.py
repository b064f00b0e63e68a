"""Rows on a simulated GPU: what answers wait for, by the engine's own scheduler. No time passes."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCH))
    try:
        import simulated_rows
    finally:
        sys.path.remove(str(BENCH))
    return simulated_rows


def options(**numbers: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"mixed": 128, "requests": 384, "seed": 0, "host_ms": 6.0, "steps": "", **numbers}
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_an_answer_waits_hardly_longer_than_for_ordinary_steps_whoever_comes(
    bench: Any, seed: int
) -> None:
    asked = options(seed=seed)
    row = bench.simulated("mixed", bench.mixed_lines(asked), asked)
    assert row["between_p99_over_p50"] <= 2.5


def test_a_host_that_launches_slowly_changes_no_pace(bench: Any) -> None:
    """What it saw of steps that had ended before is not taken for their time."""
    asked = options(host_ms=12.0)
    row = bench.simulated("mixed", bench.mixed_lines(asked), asked)
    assert row["between_p99_over_p50"] <= 2.5


def test_the_same_seed_gives_the_same_row(bench: Any) -> None:
    asked = options(mixed=16, requests=32)
    first, second = (bench.simulated("mixed", bench.mixed_lines(asked), asked) for _ in range(2))
    assert first == second


def test_every_request_is_answered_in_full(bench: Any) -> None:
    draw = random.Random(4)
    lines = [[bench.Asked(draw.randint(1, 900), draw.randint(1, 30)) for _ in range(3)]
             for _ in range(9)]  # fmt: skip
    bench.simulated("any", lines, options())
    for asked in [each for line in lines for each in line]:
        assert len(asked.times) == asked.output
        assert asked.times == sorted(asked.times)
        assert asked.times[0] > asked.sent


def test_a_crowd_has_its_first_tokens_as_fast_as_the_device_reads(bench: Any) -> None:
    row = bench.simulated("8x512x16", [[bench.Asked(512, 16)] for _ in range(8)], options())
    work = sum(bench.device_ms(0, tokens, 0) for tokens in (512, 3584))
    assert row["first_token_ms_max"] < work * 1.3
