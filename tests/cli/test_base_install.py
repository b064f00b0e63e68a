"""An install without torch: what needs it says which extra brings it, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.errors import MissingDependencyError
from zse.models.builtin import builtin_checkpoint
from zse.settings import subprocess_environment

WITHOUT_TORCH = (
    "import sys; sys.modules.update(dict.fromkeys(['torch', 'safetensors', 'transformers']))\n"
)

CHECKPOINT = str(builtin_checkpoint("tiny"))

if TYPE_CHECKING:
    from pathlib import Path


def run_without_torch(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = subprocess_environment(ZSE_CACHE_DIR=str(tmp_path), ZSE_DEVICE="cpu")
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        input="hello\n",
        timeout=120,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["chat", CHECKPOINT],
        ["benchmark", CHECKPOINT],
        ["serve", CHECKPOINT, "--port", "0"],
        ["convert", "tiny", "-o", "never.zse"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_needs_torch_names_the_extra(words: list[str], tmp_path: Path) -> None:
    done = run_without_torch(f"from zse.cli import main; main({words!r})", tmp_path)
    assert done.returncode == MissingDependencyError.exit_code
    assert "needs the package" in done.stderr
    assert "[convert]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.zse"))


def test_the_built_in_model_is_talked_to_without_torch(tmp_path: Path) -> None:
    done = run_without_torch("from zse.cli import main; main(['chat', 'tiny'])", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        (f"from zse import LLM; LLM({CHECKPOINT!r})", "convert"),
        ("from zse import load_zse_model", "hf"),
        ("from zse import convert_model", "convert"),
        ("from zse.format import load_zse_model", "hf"),
        ("from zse.format import convert_model", "convert"),
    ],
)
def test_python_raises_the_error_that_names_the_extra(
    code: str, extra: str, tmp_path: Path
) -> None:
    wrapped = (
        f"from zse.errors import MissingDependencyError\n"
        f"try:\n    {code}\n"
        f"except MissingDependencyError as error:\n    print(error.hint)"
    )
    done = run_without_torch(wrapped, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"[{extra}]" in done.stdout
