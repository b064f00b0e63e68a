"""The engine's benchmarks run on a small model and count what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zse.settings import Settings, subprocess_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts" / "bench"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from zse.quantize.locate import locate_model

    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("models")), quant="int8")


def run(script: str, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=subprocess_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", [[], ["--http"]], ids=["engine", "http"])
def test_decode_reports_rates_and_times_for_each_batch(model: Path, mode: list[str]) -> None:
    # Long enough that over HTTP, too, all answers come at once for a while.
    sizes = ["--batch", "1,3", "--input", "8", "--output", "100", "--repeat", "1"]
    report = run("decode.py", str(model), *sizes, "--device", "cpu", *mode)
    assert [row["batch"] for row in report["results"]] == [1, 3]
    for row in report["results"]:
        assert row["decode_tokens_per_second"] > 0
        assert row["step_ms_p99"] >= row["step_ms_p50"] > 0
        assert row["first_token_ms_max"] >= row["first_token_ms_p50"] > 0


def test_prefill_reports_a_rate_for_each_length(model: Path) -> None:
    report = run("prefill.py", str(model), "--tokens", "16,40", "--repeat", "2", "--device", "cpu")
    assert [row["tokens"] for row in report["results"]] == [16, 40]
    assert all(row["prompt_tokens_per_second"] > 0 for row in report["results"])


def test_quality_compares_the_tokens_of_two_devices(model: Path) -> None:
    report = run("quality.py", "--model", str(model), "--limit", "6", "--against", "cpu")
    assert report["results"]["file"]["same"] == report["num_questions"] == 6


def test_logits_are_compared_with_those_of_transformers(model: Path) -> None:
    report = run("logits.py", str(model), "--tokens", "9")
    yardstick = report["results"].pop("transformers bf16")
    assert 1e-3 < yardstick["relative_error"] < 1e-1
    assert set(report["results"]) == {"prefill", "decode", "prefill, exact", "decode, exact"}
    for way, row in report["results"].items():
        # 8-bit activations, or a cache in 16 bits alone
        assert 0 < row["relative_error"] < (2e-3 if "exact" in way else 6e-2)
        assert row["same_top_token"] == 9
