"""`zse benchmark` prints speeds, memory and time to first token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from zse.cli.benchmark import app
from zse.errors import UsageError
from zse.format import Scheme, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.kernels.native.library import load
from zse.models.families import read_header
from zse.models.uniform import UniformDecoder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = UniformDecoder(
        family="llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position=64,
    )
    path = tmp_path_factory.mktemp("benchmark") / "model.zse"
    spec = read_header(numbers.to_json())
    groups = [
        (g.name, [PlannedTensor(name=t.name, scheme=Scheme.FP32, shape=t.shape) for t in g.weights])
        for g in spec.groups()
    ]
    with ZSEWriter(path, architecture="llama", model_config=spec.header, provenance={}) as writer:
        writer.plan(groups)
        for weight in spec.weights():
            writer.write_part(weight.name, "data", bytes_from(torch.randn(weight.shape)))
        writer.close()
    return path


def test_json_holds_every_figure(model_file: Path) -> None:
    arguments = [str(model_file), "--json", "--prompt-tokens", "9", "--output-tokens", "4"]
    result = CliRunner().invoke(app, [*arguments, "--batch", "3", "--threads", "1"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["batch"], figures["prompt_tokens"], figures["output_tokens"]) == (3, 9, 4)
    assert figures["file_bytes"] == model_file.stat().st_size
    instructions = load().instructions
    assert figures["device"].startswith("cpu (")
    assert figures["device"].endswith(f", {instructions}, threads: 1)")
    for name, value in figures.items():
        assert isinstance(value, str) or value > 0, name


def test_table_names_what_people_ask_for(model_file: Path) -> None:
    arguments = [str(model_file), "--prompt-tokens", "5", "--output-tokens", "3", "--threads", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for words in ("first token", "prefill", "decode", "tokens/s", "peak resident", "KV cache"):
        assert words in result.stdout


def test_more_tokens_than_the_context_is_a_usage_error(model_file: Path) -> None:
    result = CliRunner().invoke(app, [str(model_file), "--prompt-tokens", "64"])
    assert isinstance(result.exception, UsageError)
    assert "more than the model's 64" in str(result.exception)


def test_drafts_are_held_against_answers_without_on_three_kinds_of_text() -> None:
    arguments = ["tiny", "--device", "cpu", "--threads", "1", "--output-tokens", "24", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--speculate", "suffix"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["code edit", "agent", "retrieval", "chat"]
    for row in rows:
        assert 2 <= row["output_tokens"] <= 24
        assert 0 <= row["acceptance"] <= 1 <= row["tokens_per_step"]
        assert row["is_same_answer"]
        assert row["speedup"] == row["tokens_per_second"] / row["tokens_per_second_without"]
