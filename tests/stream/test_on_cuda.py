"""The loader on the CUDA device: against the stub driver, and on a GPU where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from loads import start_load
from stub_libcuda import gpu as stub_gpu
from stub_libcuda import stub

from tests.stream.conftest import write_model
from zse.device.cuda.gpu import Gpu
from zse.format.reader import ZSEReader
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["stub", "stub_gpu"]


def check_load(gpu: Gpu, path: Path, options: LoaderOptions) -> None:
    """Load, read the block back, and compare."""
    with ZSEReader(path) as reader:
        header = reader.header
    whole = WholeFile(header)
    offset, length = whole.origin_bytes, whole.length_bytes
    block, stream = gpu.allocate(length), gpu.create_stream()
    source = LocalSource(path)
    held = set(gpu.owner.resources)
    start_load(gpu, source, WholeFile(header), block.address, options).wait()
    assert set(gpu.owner.resources) == held
    source.close()
    back = gpu.allocate_host(length)
    gpu.copy_to_host(back.address, block.address, length, stream)
    stream.synchronize()
    assert back.view == path.read_bytes()[offset : offset + length]
    for resource in (back, block):
        resource.free()
    stream.destroy()


@pytest.mark.parametrize("is_verified", [False, True])
def test_the_stub_device_holds_the_region(stub_gpu: Gpu, tmp_path: Path, is_verified: bool) -> None:
    path = write_model(tmp_path / "model.zse", [40, 3, 9])
    check_load(stub_gpu, path, LoaderOptions(threads=4, chunk_bytes=8192, is_verified=is_verified))


@pytest.fixture
def real_gpu() -> Iterator[Gpu]:
    with Gpu.open() as found:
        yield found


@pytest.mark.gpu
@pytest.mark.parametrize(("threads", "chunk_mib"), [(1, 1), (8, 1), (8, 8), (16, 2)])
def test_the_gpu_holds_the_region(
    real_gpu: Gpu, tmp_path: Path, threads: int, chunk_mib: int
) -> None:
    path = write_model(tmp_path / "model.zse", [5000, 1, 9000])
    options = LoaderOptions(threads=threads, chunk_bytes=chunk_mib << 20, is_verified=True)
    check_load(real_gpu, path, options)
