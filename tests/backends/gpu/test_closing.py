"""Norms that the products of a captured step begin choose the tokens of any other step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from interpreted_gpu import StreamLauncher
from interpreted_runner import open_runner

from zse.backends.gpu.model import DeviceModel
from zse.backends.types import SequenceChunk, StepBatch
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}


def decoded(path: Path, rows: int, steps: int, **options: Any) -> tuple[list[list[int]], set[str]]:
    """Return the tokens of some sequences, step by step, and the kernels that were launched."""
    launchers: list[StreamLauncher] = []

    def launches(stream: Any) -> StreamLauncher:
        launchers.append(StreamLauncher(stream))
        return launchers[-1]

    runner = open_runner(path, launches=launches, num_blocks=rows, max_sequences=rows, **options)
    tokens, found = [[5 + row] for row in range(rows)], []
    for position in range(steps):
        chunks = [
            SequenceChunk(
                sequence_slot=row,
                token_ids=tokens[row],
                start_position=position,
                block_table=[row],
                kind="decode",
            )
            for row in range(rows)
        ]
        result = runner.execute(
            StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)]] * rows)
        )
        tokens = [[row[0].token_id] for row in result]
        found.append([token[0] for token in tokens])
    runner.close()
    return found, {key.split("[")[0] for each in launchers for key in each.launched}


@pytest.mark.parametrize("kv_heads", [1, 2])  # of two, whose attention leaves 16 bits
def test_a_step_of_one_row_has_its_norms_begun_and_chooses_the_tokens_of_others(
    make_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kv_heads: int
) -> None:
    path: Path = make_pair("qwen2", "int4", **{**SHAPE, "num_key_value_heads": kv_heads}).path
    found, launched = decoded(path, 1, 2)
    monkeypatch.setattr(DeviceModel, "norms_behind", lambda _model, _shape: {})
    expected, others = decoded(path, 1, 2)
    assert found == expected
    assert "linear.gemv_closed" in launched
    assert "linear.gemv_closed" not in others
