"""The rules of ``tests/conftest.py``, shown on suites of one test in a child process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
HEADER = "import os, pytest\n"


def run_suite(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file, with the project's conftest as a plugin."""
    (folder / "test_it.py").write_text(HEADER + text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n gpu\n slow\n system\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "conftest", "."]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", **variables}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=environment
    )


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_gpu_its_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "@pytest.mark.gpu\ndef test_a(): assert False\n")
    assert done.returncode == 0, done.stdout
    assert "no GPU on this machine" in done.stdout


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_a_run_that_requires_a_gpu_ends_with_code_three(tmp_path: Path) -> None:
    text = "@pytest.mark.gpu\ndef test_a(): pass\n"
    assert run_suite(tmp_path, text, ZSE_REQUIRE_GPU="1").returncode == 3


def test_a_run_without_gpu_tests_needs_no_gpu(tmp_path: Path) -> None:
    assert run_suite(tmp_path, "def test_a(): pass\n", ZSE_REQUIRE_GPU="1").returncode == 0


def test_files_with_slow_tests_begin(tmp_path: Path) -> None:
    note = "\ndef test_{0}(): open('order', 'a').write('{0}')\n"
    (tmp_path / "test_before.py").write_text(note.format("a"))
    done = run_suite(tmp_path, note.format("b") + "@pytest.mark.slow" + note.format("c"))
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "order").read_text() == "bca"


def test_the_environment_of_a_developer_does_not_leak_in(tmp_path: Path) -> None:
    text = """
def test_a():
    from zse.server_options import ServeOptions
    from zse.settings import load_settings
    settings = load_settings()
    assert settings.serve == ServeOptions() and not settings.aws.endpoint_url
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert "zse-tests-cache-" in str(settings.cache_dir)
"""
    leaks = {"PORT": "1", "ZSE_MODEL": "x", "AWS_ENDPOINT_URL": "x", "AWS_ACCESS_KEY_ID": "x"}
    done = run_suite(tmp_path, text, **leaks)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="not a Debian system")
def test_missing_packages_skip_system_tests_and_are_named(tmp_path: Path) -> None:
    text = """
import service_packages
service_packages.missing_packages = lambda *_: ["some-package"]
service_packages.cannot_install = lambda: ""
@pytest.mark.system
def test_a(): assert False
"""
    done = run_suite(tmp_path, text, ZSE_TEST_SYSTEM="0")
    assert done.returncode == 0, done.stdout
    assert "packages missing: some-package; ZSE_TEST_SYSTEM=1 installs them" in done.stdout
