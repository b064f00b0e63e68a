"""The demo of a mesh: four nodes, one killed in the midst of an answer, the same text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
def test_an_answer_over_http_is_the_same_when_a_node_is_killed_in_its_midst() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo_mesh.py")],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same text, with three nodes left" in done.stdout
