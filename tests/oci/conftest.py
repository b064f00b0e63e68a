"""Fixtures of the image tests; the builders themselves are in oci_builders.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from oci_builders import MODEL, RECIPE, fill_cache, make_rootfs, make_wheel, sha256_hex

from zse.oci.image.build import build_image
from zse.oci.image.options import BuildOptions
from zse.oci.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.oci.image.options import BuiltImage


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


@pytest.fixture
def project(tmp_path: Path, recipe_files: Path) -> Path:
    """Everything a build needs: a recipe, a base, a model, a cache of fetched wheels."""
    make_rootfs(tmp_path / "base.tar")
    (tmp_path / "model.zse").write_bytes(MODEL)
    fill_cache(tmp_path / "cache", recipe_files)
    return tmp_path


@pytest.fixture
def build(project: Path) -> Callable[..., BuiltImage]:
    """Build the small recipe into ``out``; options override the usual ones."""

    def build(**options: Any) -> BuiltImage:
        wanted = {
            "name": "zse:1",
            "cache_dir": project / "cache",
            "model": project / "model.zse",
            "base": f"rootfs:{project / 'base.tar'}",
            "output": f"oci:{project / 'out'}",
            **options,
        }
        report = wanted.pop("report", lambda _: None)
        return build_image(load_recipe(project / "recipe"), BuildOptions(**wanted), report)

    return build
