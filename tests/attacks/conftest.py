"""The hostile files are run once, in one child process with little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def outcomes() -> dict[str, str]:
    """What each hostile .zse file ended in, by the attack's name."""
    done = subprocess.run(
        [sys.executable, str(HERE / "hostile_files.py")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result
