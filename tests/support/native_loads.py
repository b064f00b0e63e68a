"""Loads by threads of C onto a device that copies late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from loads import start_load

from zse.device.loader import library
from zse.errors import MissingDependencyError
from zse.format.reader import ZSEReader
from zse.kernels.native.build_loader import build_loader
from zse.stream.native import NativeLoad
from zse.stream.options import LoaderOptions, LoadReport
from zse.stream.placement import WholeFile
from zse.stream.source import DirectMode, LocalSource

if TYPE_CHECKING:
    from pathlib import Path

    from late_driver import LateGpu

SMALL = LoaderOptions(threads=3, chunk_bytes=8192)


@pytest.fixture(scope="module", autouse=True)
def own_library() -> None:
    """Have the library that this checkout's sources give."""
    try:
        build_loader([library.architecture()])
    except MissingDependencyError as error:
        pytest.skip(str(error))
    library.load_library.cache_clear()
    assert library.load_library() is not None


def begin(
    gpu: LateGpu,
    path: Path,
    options: LoaderOptions = SMALL,
    direct: DirectMode = "auto",
    **more: Any,
) -> tuple[NativeLoad, LocalSource, int]:
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    address = gpu.memory(whole.length_bytes)
    source = LocalSource(path, direct=direct)
    running = start_load(gpu, source, whole, address, options, **more)
    assert isinstance(running, NativeLoad)
    return running, source, address


def load(
    gpu: LateGpu, path: Path, options: LoaderOptions = SMALL, direct: DirectMode = "auto"
) -> tuple[bytes, LoadReport]:
    running, source, address = begin(gpu, path, options, direct)
    try:
        report = running.wait()
    finally:
        source.close()
        assert gpu.ask("live") == 0
    return gpu.bytes_of(address), report


def region_of(path: Path) -> bytes:
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    return path.read_bytes()[whole.origin_bytes :][: whole.length_bytes]
