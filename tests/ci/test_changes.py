"""scripts/changes: what a release tells those who use zse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/changes"
WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a"), ("EMAIL", "a@b"))
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        words, cwd=folder, check=False, capture_output=True, text=True, env=environment
    )


def commit(folder: Path, subject: str, **files: int) -> None:
    for name, lines in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{subject}\n" * lines)
    run(folder, "git", "add", "-A")
    assert run(folder, "git", "commit", "-qm", subject).returncode == 0


def test_commits_since_the_last_tag_stand_by_what_they_touch(tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path, "Old", zse__a=1)
    run(tmp_path, "git", "tag", "v0.1.0")
    commit(tmp_path, "Faster start", zse__stream__a=5, zse__cli__a=1)
    commit(tmp_path, "More tests", tests__a=5)
    commit(tmp_path, "A new command", zse__cli__b=3, docs__a=90)
    assert run(tmp_path, str(SCRIPT)).stdout == (
        "# Changes since v0.1.0\n\n## Starts and loading\n\n- Faster start\n\n"
        "## The command line\n\n- A new command\n\n1 more of tests, benchmarks and documentation.\n"
    )


def test_without_a_tag_all_are_told_of(tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path, "First", a=1)
    assert run(tmp_path, str(SCRIPT)).stdout == "# Changes\n\n## Elsewhere\n\n- First\n"


def test_a_tag_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    run(tmp_path, "git", "init", "-q")
    commit(tmp_path, "First", a=1)
    done = run(tmp_path, str(SCRIPT), "v9")
    assert done.returncode == 1
    assert "v9" in done.stderr
