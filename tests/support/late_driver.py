"""A GPU whose copies threads of C put off for as long as they may: see ``late_driver.c``."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from host_gpu import DeviceLostError, HostGpu

from zse.device.loader.library import CopyFunctions
from zse.device.loader.structs import DRIVER_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Thread

SOURCE = Path(__file__).parent.parent / "stream" / "late_driver.c"
FACTS = (
    *("fail_function", "fail_at", "fail_code", "cut_at", "cut_fd", "cut_bytes", "hold_at"),
    *("live", "copies", "pinned", "most_pinned", "held"),
)


@cache
def build() -> Path:
    """Return the library; skip where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the late driver")
    folder = tempfile.mkdtemp(prefix="zse-late-driver-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "liblate.so"
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(path)], check=True)
    return path


class LateGpu(HostGpu):
    """Memory and bytes are those of ``HostGpu``; what copies is C."""

    def __init__(self) -> None:
        super().__init__()
        self._library = ctypes.CDLL(str(build()))
        self._library.late_set.argtypes = [ctypes.c_int, ctypes.c_int64]
        self._library.late_get.restype = ctypes.c_int64
        self._library.late_reset()
        self.kept = 0
        """Of ``LoaderLibrary.keep``; 0 where no buffer outlives a load."""
        self.stays_for: Callable[[Thread], None] | None = None

    def tell(self, **facts: int) -> None:
        """Say what is to go wrong."""
        for name, value in facts.items():
            self._library.late_set(FACTS.index(name), value)

    def fail(self, function: str, code: int, *, at: int = 1) -> None:
        """Let calls of a function fail from the ``at``-th on."""
        number = DRIVER_FUNCTIONS.index(function)
        self.tell(fail_code=code, fail_at=at, fail_function=number)

    def ask(self, name: str) -> int:
        return int(self._library.late_get(FACTS.index(name)))

    def copy_functions(self) -> CopyFunctions:  # type: ignore[override]
        names = [f"late_{name}" for name in DRIVER_FUNCTIONS]
        functions = [getattr(self._library, name) for name in names]
        addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions]
        return CopyFunctions(
            addresses=tuple(addresses),
            context=7,
            fail=_fail,
            kept=self.kept,
            stays_for=self.stays_for,
        )


def _fail(function: str, code: int, length_bytes: int) -> NoReturn:
    raise DeviceLostError(f"{function} of {length_bytes} bytes: {code}")


@pytest.fixture
def late_gpu() -> Iterator[LateGpu]:
    """A device that must have everything back in the end."""
    found = LateGpu()
    yield found
    assert found.ask("live") == 0
    assert found.ask("pinned") == 0
