"""A short run of the fuzzer on fixed rounds, so that it cannot rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_format.py"


def test_four_hundred_damaged_files_end_in_format_errors() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", "400", "--minutes", "10"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"rounds": 400' in done.stdout
