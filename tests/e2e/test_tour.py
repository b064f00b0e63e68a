"""The tour is a script of commands that all work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo_tour.py"


@pytest.mark.nightly
def test_the_tour_shows_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--no-pause", "--work", tmp_path]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("ready after", "Paris", '"capital"', '"42"', "tokens a second", "a month"):
        assert words in done.stdout, done.stdout
