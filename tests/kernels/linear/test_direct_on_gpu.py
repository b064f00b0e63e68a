"""On the GPU at hand products of a few tokens are the reference's, in the bits of any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("direct_products.py")


@pytest.mark.gpu
@pytest.mark.slow
def test_every_form_is_within_its_tolerance_and_has_the_bits_of_more_tokens() -> None:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
