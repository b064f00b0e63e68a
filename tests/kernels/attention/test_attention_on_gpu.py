"""The norm, activation and attention kernels equal torch on the GPU at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "bench" / "attention.py"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("only", ["check decode", "check prefill", "norm rows 1 |silu rows 8"])
def test_every_case_is_within_its_tolerance(only: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", only],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
