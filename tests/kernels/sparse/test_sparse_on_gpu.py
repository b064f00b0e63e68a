"""On a GPU the kernel is taken, and equals the reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparse_on_gpu import PATTERNS

SCRIPT = Path(__file__).resolve().parents[2] / "support" / "sparse_on_gpu.py"


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_kernel_equals_the_reference(pattern: str) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), pattern],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
