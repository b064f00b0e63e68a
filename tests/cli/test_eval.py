"""`zse eval` reads a text with one model or two, and says what came of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from zse.cli.eval import app
from zse.errors import UsageError
from zse.models.builtin import BUILTIN_MODELS
from zse.quantize.convert import convert_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("eval")
    paths = {quant: folder / f"{quant}.zse" for quant in ("fp16", "int4")}
    for quant, path in paths.items():
        convert_model("tiny", path, quant)
    return paths


def figures(*words: str | Path) -> dict:
    result = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


def test_a_model_in_fewer_bits_is_farther_from_its_checkpoint(files: dict[str, Path]) -> None:
    near = figures(files["fp16"], "--against", BUILTIN_MODELS["tiny"], "--tokens", "200")
    far = figures(files["int4"], "--against", BUILTIN_MODELS["tiny"], "--tokens", "200")
    assert near["divergence_nats"] < 1e-4 < far["divergence_nats"]
    assert near["same_top"] > far["same_top"]
    assert near["against_surprise_nats"] == far["against_surprise_nats"]


def test_read_token_by_token_an_exact_model_says_what_it_said_of_the_prompt(
    files: dict[str, Path],
) -> None:
    settings = (files["fp16"], "--tokens", "40", "--exact-activations")
    whole, single = figures(*settings), figures(*settings, "--as", "decode")
    assert math.isclose(whole["perplexity"], single["perplexity"], rel_tol=1e-3)


def test_what_rounding_costs_is_measured_against_the_same_file_without_any(
    files: dict[str, Path],
) -> None:
    path = files["int4"]
    words = (path, "--against", path, "--tokens", "40", "--as", "decode")
    none = figures(*words, "--exact-activations")["divergence_nats"]
    activations = figures(*words)["divergence_nats"]
    cache = figures(*words, "--exact-activations", "--kv-dtype", "int8")["divergence_nats"]
    assert none < 1e-6 < min(activations, cache)


def test_people_read_perplexity_with_its_interval(files: dict[str, Path]) -> None:
    words = [str(files["int4"]), "--against", str(files["fp16"]), "--tokens", "120"]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "perplexity" in shown
    assert "of fp16.zse" in shown
    assert " +- " in shown


def test_a_window_longer_than_the_context_is_refused(files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="smaller --context"):
        figures(
            files["fp16"],
            "--context",
            "100000",
            "--text",
            str(Path(__file__).parents[2] / "docs" / "performance.md"),
        )
