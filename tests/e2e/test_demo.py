"""The main job as a newcomer runs it; it fetches packages and wheels the first time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def demo(work: Path, *arguments: str) -> dict:
    # The developer's own cache is used: wheels and layers are keyed by their digests.
    environment = {k: v for k, v in os.environ.items() if k != "ZSE_CACHE_DIR"}
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "demo_job.py"),
            "--json",
            "--work",
            work,
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_image_of_the_built_in_model_answers_and_has_one_digest(tmp_path):
    first = demo(tmp_path)
    assert "Paris" in first["answer"]
    assert first["image_mb"] < 400
    assert "ready" in first["server_timing"]
    again = demo(tmp_path, "--runner", "unpacked layers")
    assert "Paris" in again["answer"]
    assert again["digest"] == first["digest"]
    assert list(tmp_path.iterdir()) == []
