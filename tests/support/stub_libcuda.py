"""The driver of ``stub_libcuda.c`` for tests: built once, asked what it was told to do.

Import the fixtures by name: ``from stub_libcuda import gpu, stub``.
"""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_suffix(".c")
DEVICE_KIND, HOST_KIND, PIECE_KIND = 1, 2, 4


@cache
def build(*flags: str) -> Path:
    """Return the path of a libcuda.so.1; skip where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the stub driver")
    folder = tempfile.mkdtemp(prefix="zse-stub-libcuda-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "libcuda.so.1"
    command = [compiler, "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *flags]
    subprocess.run([*command, str(SOURCE), "-o", str(path)], check=True)
    return path


def image(*kernels: str, capability: int = 90) -> bytes:
    """Return an image that the stub loads: ``image("add=8,8,4,8,8")``."""
    return b"\x7fELF" + f"cc={capability};{';'.join(kernels)}".encode()


@dataclass(frozen=True, kw_only=True)
class RecordedLaunch:
    """A kernel that the stub was told to run."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    cluster: tuple[int, ...]
    programmatic: int
    cooperative: int
    scheduling: int
    parameters: tuple[int, ...]
    """Each parameter's bytes, read as an unsigned little-endian number."""


class _Launch(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 128),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("programmatic", ctypes.c_int),
        ("cooperative", ctypes.c_int),
        ("scheduling", ctypes.c_int),
        ("count", ctypes.c_int),
        ("parameters", ctypes.c_uint64 * 64),
    ]


class Stub:
    """The stub driver's memory of what happened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.stub_launch.restype = ctypes.POINTER(_Launch)
        self._library.stub_bytes.restype = ctypes.c_size_t

    def reset(self) -> None:
        """Forget everything, what was not given back included."""
        self._library.stub_forget()
        self._library.stub_reset()

    def driver(self) -> Driver:
        return Driver(str(self.path))

    def live(self) -> int:
        """Contexts, blocks, streams, events, modules and graphs that were not given back."""
        return int(self._library.stub_live())

    def bytes_of(self, kind: int) -> int:
        return int(self._library.stub_bytes(kind))

    def forget_launches(self) -> None:
        self._library.stub_forget_launches()

    def launches(self) -> list[RecordedLaunch]:
        count = self._library.stub_num_launches()
        return [self._read(self._library.stub_launch(index).contents) for index in range(count)]

    @staticmethod
    def _read(launch: _Launch) -> RecordedLaunch:
        return RecordedLaunch(
            name=launch.name.decode(),
            grid=tuple(launch.grid),
            block=tuple(launch.block),
            shared_bytes=launch.shared_bytes,
            cluster=tuple(launch.cluster),
            programmatic=launch.programmatic,
            cooperative=launch.cooperative,
            scheduling=launch.scheduling,
            parameters=tuple(launch.parameters[: launch.count]),
        )


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A stub driver that nothing was done with; everything must be given back at the end."""
    found = Stub(build())
    found.reset()
    yield found
    assert found.live() == 0, "something of the driver's was not given back"


@pytest.fixture
def gpu(stub: Stub) -> Iterator[Gpu]:
    """An open GPU of the stub driver."""
    with Gpu.open(driver=stub.driver()) as opened:
        yield opened
