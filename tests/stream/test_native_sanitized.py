"""Sanitizers over the threads of C that load."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from zse.device.loader import library

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
FOLDER = Path(__file__).parent
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_sanitizer_finds_nothing_in_the_loader(tmp_path: Path, sanitizer: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: apt-get install gcc")
    program = tmp_path / "driver"
    sources = [*FOLDER.glob("*_driver.c"), *library.FOLDER.glob("*.c")]
    flags = ["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-pthread", f"-I{library.FOLDER}"]
    words = ["gcc", *flags, *SANITIZERS[sanitizer], *map(str, sources), "-o", str(program)]
    subprocess.run(words, check=True)
    done = subprocess.run([program], check=False, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
