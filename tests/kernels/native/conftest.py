"""Programs of C that drive the pool and the kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from driven_steps import compile_driver


@pytest.fixture(scope="session")
def pool_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("driver") / "pool_driver"
    return compile_driver("pool_driver.c", program, "native/pool.c", "-O2")
