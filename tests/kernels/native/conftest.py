"""The pool with kernels that notice what goes wrong, as a program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from zse.kernels.native.build import compiler_command
from zse.kernels.native.sources import KERNELS

DRIVER = Path(__file__).with_name("pool_driver.c")
FLAGS = ("-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")


@pytest.fixture(scope="session")
def pool_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("driver") / "pool_driver"
    native = KERNELS / "native"
    # The system's own, where there is one: ziglang first compiles what programs begin with.
    compiler = ["cc"] if shutil.which("cc") else compiler_command()
    files = [str(DRIVER), str(native / "pool.c"), "-o", str(program)]
    subprocess.run([*compiler, *FLAGS, f"-I{native}", *files], check=True)
    return program
