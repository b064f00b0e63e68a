"""The import contracts hold, and a broken one is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_package_has_its_layer_and_imports_point_down() -> None:
    run = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout


def test_a_new_package_without_a_layer_breaks_the_contract(tmp_path: Path) -> None:
    package = tmp_path / "zse"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("errors", "utils"):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
    (tmp_path / ".importlinter").write_text(
        "[importlinter]\nroot_package=zse\n[importlinter:contract:layers]\nname=l\ntype=layers\n"
        "containers=zse\nexhaustive=true\nlayers=\n  errors\n"
    )
    run = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode != 0
    assert "utils" in run.stdout
