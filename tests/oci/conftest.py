"""Fixtures of the image tests; the builders themselves are in oci_builders.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from oci_builders import RECIPE, make_wheel, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def wheel_builder(tmp_path: Path) -> Callable[..., Path]:
    return lambda *args, **kwargs: make_wheel(tmp_path, *args, **kwargs)


@pytest.fixture
def recipe_files(tmp_path: Path) -> Path:
    """A recipe folder with one wheel, whose download cache is filled, so that nothing is fetched."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "image.toml").write_text(RECIPE)
    (folder / "boot.py").write_text("print('boot')\n")
    wheel = make_wheel(folder)
    digest = sha256_hex(wheel.read_bytes())
    (folder / "wheels.amd64.lock").write_text(
        f'[[wheel]]\nname = "demo"\nversion = "1.0"\nfile = "{wheel.name}"\nsha256 = "{digest}"\n'
    )
    return folder
