"""scripts/changes: what a release tells those who use zse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of version 0.2.0, whose changelog has two versions."""
    run(tmp_path, "git", "init", "-q")
    (tmp_path / "zse").mkdir()
    (tmp_path / "zse/__init__.py").write_text('__version__ = "0.2.0"\n')
    text = "# Changelog\n\n## 0.2.0\n\n- It flies.\n\n## 0.1.0\n\n- It walks.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    commit(tmp_path, "Old", zse__a=1)
    return tmp_path


def test_the_section_of_the_version_comes_first_and_then_commits_by_what_they_touch(
    repository: Path,
) -> None:
    run(repository, "git", "tag", "v0.1.0")
    commit(repository, "Faster start", zse__stream__a=5, zse__cli__a=1)
    commit(repository, "More tests", tests__a=5)
    commit(repository, "A new command", zse__cli__b=3, docs__a=90)
    assert run(repository, str(SCRIPT)).stdout == (
        "# zse 0.2.0\n\n- It flies.\n\n"
        "# Commits since v0.1.0\n\n## Starts and loading\n\n- Faster start\n\n"
        "## The command line\n\n- A new command\n\n1 more of tests, benchmarks and documentation.\n"
    )


def test_the_first_release_has_its_section_alone(repository: Path) -> None:
    assert run(repository, str(SCRIPT)).stdout == "# zse 0.2.0\n\n- It flies.\n"


def test_a_version_without_a_section_is_an_error(repository: Path) -> None:
    (repository / "zse/__init__.py").write_text('__version__ = "0.3.0"\n')
    done = run(repository, str(SCRIPT))
    assert done.returncode == 1
    assert "## 0.3.0" in done.stderr


def test_a_tag_that_is_not_there_is_an_error(repository: Path) -> None:
    done = run(repository, str(SCRIPT), "v9")
    assert done.returncode == 1
    assert "v9" in done.stderr


def test_the_version_of_now_has_a_section() -> None:
    done = run(SCRIPT.parents[1], str(SCRIPT))
    assert (done.returncode, done.stderr) == (0, "")
