"""The small file with every scheme, written once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

import small_file


@pytest.fixture(scope="session")
def small_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small golden file on disk; tests must not change it."""
    path = tmp_path_factory.mktemp("format") / "small.zse"
    small_file.write(path)
    return path
