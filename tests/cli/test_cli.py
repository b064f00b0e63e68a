from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse import __version__
from zse.cli import COMMANDS, run
from zse.errors import NotFoundError, StoreError

if TYPE_CHECKING:
    from pathlib import Path


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_or_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    assert "Usage: zse" in capsys.readouterr().out


def test_help_is_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-h"]) == 0
    said = capsys.readouterr().out
    places = [said.index(f"\n{section}:\n") for section in ("Models", "Serve", "Ship", "Machine")]
    assert places == sorted(places)
    assert places[0] < said.index("  convert ") < places[1] < said.index("  chat ") < places[2]


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from zse.cli import run; run(['--help']);"
        "print(*[m for m in sys.modules if m.startswith('zse.')], file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(child.stderr.split()) == {"zse.cli", "zse.cli.app"}


def test_a_command_runs_without_the_heavy_parts_of_typer(tmp_path: Path) -> None:
    code = (
        f"import sys; from zse.cli import run; run(['ls', {str(tmp_path)!r}]); run(['convrt']);"
        "run(['cache', 'clean', '--dry-run', '--keep', '1d']); run(['serve', '--port', 'x']);"
        "print({'pydantic', 'rich', 'numpy', 'torch'} & sys.modules.keys())"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "set()"


def test_a_deliberate_error_becomes_its_exit_code_and_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run(["inspect", "/nowhere/model.zse"])
    captured = capsys.readouterr()
    assert code == NotFoundError.exit_code
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "hint: " in captured.err


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["no-such-command"]) == 2
    assert "no such command" in capsys.readouterr().err


def test_a_file_that_the_system_refuses_is_an_error_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("ZSE_CACHE_DIR", str(in_the_way))
    assert run(["cache", "ls"]) == StoreError.exit_code
    found = capsys.readouterr().err
    assert f"the cache folder {in_the_way} (ZSE_CACHE_DIR) cannot be used: Not a directory" in found
    assert "hint: " in found


def test_the_version_warns_of_another_program_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"zse, version {__version__}\n"
    folder = tmp_path / "zllm_zse-1.4.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zllm-zse\nVersion: 1.4.2\n")
    (folder / "RECORD").write_text("zse/__init__.py,sha256=x,1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert run(["--version"]) == 0
    assert "zllm-zse 1.4.2, another program" in capsys.readouterr().err
