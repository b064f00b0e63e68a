"""Attention asks for what is cached before the kernel ahead has ended, where nobody writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from interpreted_runner import open_runner

from zse.backends.types import SequenceChunk, StepBatch, StepKind
from zse.device.facts_of_gpus import H200
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value
    from zse.kernels.variant import Variant
    from zse.models.runner import ModelRunner

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 128,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
}


class Asked:
    """A launcher that notes whether attention of single rows is early, and launches nothing."""

    device = H200

    def __init__(self) -> None:
        self.early: list[int] = []

    def prepare(self, *variants: Variant) -> None:
        pass

    def launch(self, variant: Variant, _grid: Grid, *arguments: Value) -> None:
        names = [argument.name for argument in variant.arguments]
        if variant.kernel.name == "attention.decode":
            self.early.append(int(arguments[names.index("early")]))


@pytest.fixture(scope="module")
def opened(make_pair: Callable[..., Any]) -> Iterator[tuple[ModelRunner, Asked]]:
    path: Path = make_pair("qwen2", "int4", **SHAPE).path
    asked = Asked()
    runner = open_runner(path, launches=lambda _stream: asked)
    yield runner, asked
    runner.close()


def chunk(slot: int, kind: StepKind, tokens: int) -> SequenceChunk:
    return SequenceChunk(
        sequence_slot=slot,
        token_ids=[5 + index for index in range(tokens)],
        start_position=8,
        block_table=[2 * slot, 2 * slot + 1],
        kind=kind,
    )


def asked_by(opened: tuple[ModelRunner, Asked], *chunks: SequenceChunk) -> list[int]:
    """Return whether the attention of a step's single rows is early, launch by launch."""
    runner, asked = opened
    rows = [
        [SamplingRow(temperature=0.0)] * (len(chunk.token_ids) if chunk.kind == "verify" else 1)
        for chunk in chunks
    ]
    asked.early.clear()
    runner.execute(StepBatch(chunks=list(chunks), sampling=rows))
    return asked.early


def test_rows_that_each_continue_a_sequence_ask_early(opened: tuple[ModelRunner, Asked]) -> None:
    assert set(asked_by(opened, chunk(0, "decode", 1), chunk(1, "decode", 1))) == {1}


def test_rows_that_read_what_rows_before_them_write_wait(opened: tuple[ModelRunner, Asked]) -> None:
    asked = asked_by(opened, chunk(0, "verify", 3))
    assert asked[:2] == [1, 0], "the pass that writes sees nothing, the one that reads waits"


def test_rows_beside_prompts_wait(opened: tuple[ModelRunner, Asked]) -> None:
    assert set(asked_by(opened, chunk(0, "decode", 1), chunk(1, "prefill", 4))) == {0}
