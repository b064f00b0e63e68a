"""The main job as a newcomer runs it; it fetches packages and wheels the first time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo_job.py"


def run(work: Path, *arguments: str) -> subprocess.CompletedProcess:
    # The developer's own cache is used: wheels and layers are keyed by their digests.
    environment = {k: v for k, v in os.environ.items() if k != "ZSE_CACHE_DIR"}
    command = [sys.executable, SCRIPT, "--work", work, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_image_of_the_built_in_model_answers_and_has_one_digest_and_both_stay(tmp_path):
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert "Paris" in first["answer"]
    assert first["image_mb"] < 400
    assert "ready" in first["server_timing"]
    assert {str(path) for path in tmp_path.iterdir()} == set(first["kept"].values())
    again = run(tmp_path, "--runner", "unpacked layers")
    assert again.returncode == 0, again.stderr
    assert "from an earlier run" in again.stderr
    assert first["digest"] in again.stdout
    assert f"zse serve {first['kept']['model']}" in again.stdout
    assert run(tmp_path, "--clean").returncode == 0
    assert not tmp_path.exists()


def test_cleaning_removes_what_demos_keep_and_nothing_else(tmp_path):
    for name in ("tiny.zse", "mine.txt"):
        (tmp_path / name).write_text("")
    for name in ("image", "scratch-0a"):
        (tmp_path / name / "blobs").mkdir(parents=True)
    assert run(tmp_path, "--clean").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
