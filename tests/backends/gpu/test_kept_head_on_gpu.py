"""Answers of many rows by a head that is kept turned, on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mixed_steps import ROW, SHAPE, SLOTS, chunk_of, open_runner
from random_files import write_random_file

from zse.backends.gpu.choosing import Choosing
from zse.backends.types import StepBatch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu
PROMPT_TOKENS = 300
FARTHEST = 0.25
"""Of logarithms of probabilities: a wrong row or scale is whole units away."""


def answers(path: Path) -> list[dict[int, float]]:
    """Return what a step of all slots behind prompts finds likeliest, and how likely."""
    runner = open_runner(path, prefill_weights="keep")
    runner.settle()
    for slot in range(SLOTS):
        prompt = [(7 * slot + token) % 320 for token in range(PROMPT_TOKENS)]
        runner.execute(StepBatch(chunks=[chunk_of(slot, prompt, 0)], sampling=[[ROW]]))
    for position in (PROMPT_TOKENS, PROMPT_TOKENS + 1):  # the second one is captured
        chunks = [chunk_of(slot, [slot], position) for slot in range(SLOTS)]
        found = runner.execute(StepBatch(chunks=chunks, sampling=[[ROW]] * SLOTS))
    captured = [step for key, step in runner._backend._graphs.items() if key.rows > SLOTS]
    assert [step.is_turned for step in captured] == [True]
    runner.close()
    return [dict(answer[0].top) for answer in found]


@pytest.mark.parametrize("vocab_size", [320, 20_480])
def test_a_turned_head_finds_what_the_stored_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocab_size: int
) -> None:
    path = tmp_path / "model.zse"
    write_random_file(path, "int4", **{**SHAPE, "vocab_size": vocab_size})
    monkeypatch.setattr("zse.backends.gpu.plans.TURNED_ROWS", 1)
    turned = answers(path)
    monkeypatch.setattr(Choosing, "_kept_head", lambda *_: None)
    stored = answers(path)
    assert turned != stored
    for one, other in zip(turned, stored, strict=True):
        both = one.keys() & other.keys()
        assert both
        assert all(abs(one[token] - other[token]) < FARTHEST for token in both)
