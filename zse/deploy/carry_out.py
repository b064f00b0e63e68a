"""What a plan does to the world: files in a folder, then the platform's own tool."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from zse.deploy.errors import DeployError
from zse.errors import MissingDependencyError, RefusedError
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from zse.deploy.plan import Plan


def write_files(plan: Plan, folder: Path, *, is_forced: bool = False) -> list[Path]:
    """Write a plan's files, each whole or not at all; return those that were not there already.

    Files that say something else are replaced when that is forced.

    Raises:
        RefusedError: A file is there and says something else.
        DeployError: The folder cannot be written.
    """
    paths = {folder / name: text for name, text in plan.files.items()}
    changed = {path: text for path, text in paths.items() if _text_of(path) != text}
    differing = [path for path in changed if path.exists()]
    if differing and not is_forced:
        raise RefusedError(
            f"{differing[0]} is there already and says something else",
            hint="Choose another --output, or replace it with --force.",
        )
    for path, text in changed.items():
        try:
            write_whole(path, text, mode=0o755 if path.suffix == ".sh" else 0o644)
        except OSError as error:
            raise DeployError(
                f"{path} cannot be written: {error.strerror}", hint="Choose another --output."
            ) from None
    return list(changed)


def run_commands(
    commands: Iterable[tuple[str, ...]], folder: Path, report: Callable[[str], None]
) -> None:
    """Run commands in the folder of a plan's files, one after the other.

    Raises:
        MissingDependencyError: The platform's tool is not installed.
        DeployError: A command ended with another code than 0.
    """
    for words in commands:
        report(f"$ {shlex.join(words)}")
        if shutil.which(words[0]) is None:
            raise MissingDependencyError(
                f"{words[0]} is not installed",
                hint=f"Install it, or run the command where it is: cd {folder}.",
            )
        done = subprocess.run(words, cwd=folder, check=False)
        if done.returncode:
            raise DeployError(
                f"{words[0]} ended with code {done.returncode}",
                hint=f"What it was given lies in {folder}.",
            )


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
