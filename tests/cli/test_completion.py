"""Tab completes commands, options and models, in every shell that has a script."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.cli import run
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from pathlib import Path


def completed(line: str) -> list[str]:
    """Return what bash is told for the last word of ``line``."""
    words = line.split(" ")
    environment = subprocess_environment(
        _ZSE_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    code = "import sys; sys.argv = ['zse']; from zse.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("shell", "begins"),
    [
        ("bash", "_ZSE_COMPLETE=complete_bash"),
        ("zsh", "_ZSE_COMPLETE=complete_zsh"),
        ("fish", "_ZSE_COMPLETE=complete_fish"),
        ("powershell", '$Env:_ZSE_COMPLETE = "complete_powershell"'),
    ],
)
def test_a_script_for_each_shell(
    shell: str, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    assert begins in capsys.readouterr().out


def test_powershell_is_told_commands_and_what_they_do() -> None:
    environment = subprocess_environment(
        _ZSE_COMPLETE="complete_powershell",
        _TYPER_COMPLETE_ARGS="zse conv",
        _TYPER_COMPLETE_WORD_TO_COMPLETE="conv",
    )
    code = "import sys; sys.argv = ['zse']; from zse.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("convert:::Turn a Hugging Face checkpoint")


def test_a_shell_reads_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "bash"]) == 0
    script = tmp_path / "zse.bash"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["bash", "-c", f". {script} && complete -p zse"], check=True)


def test_commands_are_completed() -> None:
    assert completed("zse conv") == ["convert"]


def test_a_model_is_a_builtin_or_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiger.zse").touch()
    (tmp_path / "tides").mkdir()
    (tmp_path / ".tidy").touch()
    assert completed("zse serve ti") == ["tiny", "tides/", "tiger.zse"]


def test_where_only_files_are_left_the_shell_completes_them() -> None:
    assert completed("zse inspect ./m") == []


def test_choices_are_completed_and_so_are_targets_and_verbs() -> None:
    assert completed("zse convert tiny --quant in") == ["int4", "int3", "int2", "int8"]
    assert completed("zse deploy ku") == ["kubernetes"]
    assert completed("zse kernels tune --scheme n") == ["nf4", "nl4"]


def test_options_are_completed() -> None:
    assert "--port" in completed("zse serve --po")


def test_completing_a_command_imports_none() -> None:
    code = (
        "import sys; from zse.cli import cli; import typer\n"
        "cli.shell_complete(typer.Context(cli), '')\n"
        "print(*[name for name in sys.modules if name.startswith('zse.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"zse.cli", "zse.cli.app"}


def test_a_tab_in_zsh_tells_the_help_and_imports_no_rich() -> None:
    environment = subprocess_environment(
        _ZSE_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="zse conv"
    )
    code = (
        "import atexit, sys; atexit.register(lambda: print('rich' in sys.modules))\n"
        "sys.argv = ['zse']; from zse.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert '"convert":"Turn a Hugging Face checkpoint into one .zse file."' in done.stdout
    assert done.stdout.splitlines()[-1] == "False"


def test_the_shell_of_the_terminal_gets_the_script_by_one_option(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("alias ll='ls -l'\n")
    words = (
        f"{sys.executable} -c 'import sys; sys.argv[0] = \"zse\"; from zse.cli import main; main()'"
    )
    environment = subprocess_environment(HOME=str(tmp_path))
    for option in ("--install-completion", "--show-completion"):
        done = subprocess.run(
            ["bash", "--norc", "-c", f"{words} {option}; true"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip(), done.stderr
    assert "complete -o default -F _zse_completion zse" in done.stdout
    assert "alias ll" in (tmp_path / ".bashrc").read_text()
    script = tmp_path / ".bash_completions" / "zse.sh"
    subprocess.run(["bash", "-c", f". {script} && complete -p zse"], check=True)
