"""Blocks of memory on the stub driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from stub_libcuda import DEVICE_KIND, HOST_KIND, Stub

from zse.device.cuda.errors import CudaError, CudaRule, OutOfDeviceMemoryError

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu


def test_a_block_is_aligned_and_freed_once(gpu: Gpu, stub: Stub) -> None:
    block = gpu.allocate(1000)
    assert block.address % 256 == 0
    assert block.length_bytes == 1000
    assert stub.bytes_of(DEVICE_KIND) == 1000
    block.free()
    block.free()
    assert stub.bytes_of(DEVICE_KIND) == 0
    with breaks(CudaRule.RELEASED, match="a block of device memory was used after"):
        block.address  # noqa: B018


def test_pinned_memory_is_writable_through_its_view(gpu: Gpu, stub: Stub) -> None:
    block = gpu.allocate_host(4096)
    assert block.address % 4096 == 0
    view = block.view
    view[10:13] = b"abc"
    assert bytes(block.view[10:13]) == b"abc"
    assert (len(view), view.format, view.readonly) == (4096, "B", False)
    block.free()
    block.free()
    assert stub.bytes_of(HOST_KIND) == 0
    with breaks(CudaRule.RELEASED, match="pinned memory"):
        block.view  # noqa: B018
    with pytest.raises(ValueError, match="released"):
        view[0]  # the view itself ends with its memory


@pytest.mark.parametrize("length_bytes", [2 << 20, (4 << 20) + 4096])
def test_large_pinned_memory_is_registered_huge_pages(
    gpu: Gpu, stub: Stub, monkeypatch: pytest.MonkeyPatch, length_bytes: int
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemHostAlloc:2")
    block = gpu.allocate_host(length_bytes)
    assert block.address % (2 << 20) == 0
    assert len(block.view) == length_bytes == stub.bytes_of(HOST_KIND)
    block.view[-3:] = b"end"
    assert bytes(block.view[-3:]) == b"end"
    block.free()
    block.free()
    assert stub.bytes_of(HOST_KIND) == 0


def test_the_driver_allocates_where_it_does_not_register(
    gpu: Gpu, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemHostRegister_v2:801")
    block = gpu.allocate_host(4 << 20)
    assert len(block.view) == 4 << 20 == stub.bytes_of(HOST_KIND)
    block.free()
    assert stub.bytes_of(HOST_KIND) == 0


def test_a_host_without_memory_for_huge_pages_is_asked_for_others(
    gpu: Gpu, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("zse.device.cuda.huge_pages.mmap.mmap", refuse)
    gpu.allocate_host(4 << 20).free()
    assert stub.bytes_of(HOST_KIND) == 0


def test_asking_for_too_much_says_what_was_asked_and_what_is_free(gpu: Gpu) -> None:
    gpu.allocate(24_000_000)
    asked = r"out of GPU memory: 2\.00 GB \(2000000000 bytes\) asked, 1\.05 GB of 1\.07 GB are free"
    with pytest.raises(OutOfDeviceMemoryError, match=asked) as caught:
        gpu.allocate(2_000_000_000)
    assert caught.value.code == 2
    assert "smaller" in caught.value.hint


def test_what_is_free_may_be_unknown(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemAlloc_v2:2,cuMemGetInfo_v2:999")
    with pytest.raises(OutOfDeviceMemoryError, match="the driver does not say what is free"):
        gpu.allocate(100)


def test_a_host_that_cannot_pin_is_told_apart(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemHostAlloc:2")
    with pytest.raises(OutOfDeviceMemoryError, match="the host cannot pin") as caught:
        gpu.allocate_host(100)
    assert "ulimit -l" in caught.value.hint


@pytest.mark.parametrize("length_bytes", [0, -1])
def test_a_block_of_nothing_is_refused(gpu: Gpu, length_bytes: int) -> None:
    with pytest.raises(CudaError, match=f"cannot allocate {length_bytes} bytes"):
        gpu.allocate(length_bytes)
    with pytest.raises(CudaError, match=f"cannot allocate {length_bytes} bytes"):
        gpu.allocate_host(length_bytes)


def test_another_code_of_an_allocation_keeps_its_name(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemAlloc_v2:999")
    with pytest.raises(CudaError, match="cuMemAlloc_v2: CUDA_ERROR_UNKNOWN"):
        gpu.allocate(100)
