"""On the GPU at hand norms that products begin are those that would follow them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("closed_products.py")


@pytest.mark.gpu
@pytest.mark.slow
def test_every_form_begins_the_norm_that_would_follow() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
