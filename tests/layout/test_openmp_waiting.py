"""Whoever imports torch through zse has told OpenMP before how long its threads may spin."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.models.builtin import builtin_checkpoint
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from pathlib import Path

# Ends the process where torch would be imported, saying what libgomp would read then.
WATCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("spin", os.environ.get("GOMP_SPINCOUNT", "unset"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
"""
# The built-in model comes converted; its checkpoint's folder is converted as any is.
CHECKPOINT = str(builtin_checkpoint("tiny"))
ENTRY_POINTS = {
    "chat": f"from zse.cli import main; main(['chat', {CHECKPOINT!r}])",
    "benchmark": f"from zse.cli import main; main(['benchmark', {CHECKPOINT!r}])",
    "convert": "from zse.cli import main; main(['convert', 'tiny', '-o', 'out.zse'])",
    "serve": f"from zse.cli import main; main(['serve', {CHECKPOINT!r}, '--port', '0'])",
    "server": f"import sys; sys.argv = ['zse-serve', {CHECKPOINT!r}, '--port', '0'];"
    "from zse.serve.__main__ import main; main()",
    "LLM": f"from zse import LLM; LLM({CHECKPOINT!r})",
    "load_zse_model": "from zse.format import load_zse_model; load_zse_model('tiny.zse')",
    "convert_model": "from zse.format import convert_model; convert_model('tiny', 'out.zse')",
}


def spin_count_when_torch_comes(code: str, folder: Path, **environment: str) -> str:
    env = subprocess_environment(ZSE_CACHE_DIR=str(folder / "cache"), **environment)
    env.pop("OMP_WAIT_POLICY", None)
    run = subprocess.run(
        [sys.executable, "-c", WATCH + code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = [line.partition(" ")[2] for line in run.stdout.splitlines() if line.startswith("spin ")]
    assert found, f"torch was never asked for: {run.stdout}{run.stderr}"
    return found[0]


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_waiting_is_bounded_before_torch_is_imported(name: str, tmp_path: Path) -> None:
    assert 0 < int(spin_count_when_torch_comes(ENTRY_POINTS[name], tmp_path)) < 100_000


def test_what_the_user_has_set_stays(tmp_path: Path) -> None:
    found = spin_count_when_torch_comes(ENTRY_POINTS["convert"], tmp_path, GOMP_SPINCOUNT="17")
    assert found == "17"


def test_a_waiting_policy_of_the_user_is_not_weakened(tmp_path: Path) -> None:
    code = "import os; os.environ['OMP_WAIT_POLICY'] = 'passive';" + ENTRY_POINTS["convert"]
    assert spin_count_when_torch_comes(code, tmp_path) == "unset"
