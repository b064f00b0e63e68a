"""The whole main job through real services, by the command that people run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_full_demo_converts_stores_builds_pushes_pulls_starts_and_answers() -> None:
    # The developer's own cache is used: wheels and layers are keyed by their digests.
    environment = {k: v for k, v in os.environ.items() if k != "ZSE_CACHE_DIR"}
    done = subprocess.run(
        [ROOT / "scripts" / "demo", "--full"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    answers = [line for line in done.stdout.splitlines() if line.startswith("answer:")]
    assert len(answers) == 1
    assert "Paris" in answers[0]
    assert "sha256:" in done.stdout
