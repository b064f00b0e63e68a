"""Memory that several processes see, and links between GPUs, on the stub driver."""

from __future__ import annotations

import mmap
import os
from ctypes import addressof, c_char
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from stub_libcuda import PIECE_KIND, Stub

from zse.device.cuda.errors import CudaError, CudaRule, OutOfDeviceMemoryError
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.links import read_links

if TYPE_CHECKING:
    from zse.device.gpu import Block

PIECE = 2 << 20


def read(gpu: Gpu, block: Block, length_bytes: int) -> bytes:
    stream, host = gpu.create_stream(), gpu.allocate_host(length_bytes)
    gpu.copy_to_host(host.address, block.address, length_bytes, stream)
    stream.synchronize()
    return bytes(host.view)


def test_what_one_gpu_writes_the_other_reads_through_a_descriptor(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    with Gpu.open(0, driver=stub.driver()) as one, Gpu.open(1, driver=stub.driver()) as other:
        own = one.allocate_shared(1000)
        descriptor = own.export()
        mapped = other.open_shared(descriptor, 1000)
        os.close(descriptor)
        assert own.length_bytes == mapped.length_bytes == PIECE
        assert own.address != mapped.address
        one.fill(own.address, 7, 1000, one.create_stream())
        assert read(other, mapped, 1000) == b"\7" * 1000
        own.free()
        assert read(other, mapped, 10) == b"\7" * 10  # it goes with its last user
        mapped.free()
    assert stub.bytes_of(PIECE_KIND) == 0


@pytest.mark.parametrize(
    "failing", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]
)
def test_a_block_that_fails_half_way_is_given_back(
    gpu: Gpu, stub: Stub, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", f"{failing}:2")
    with pytest.raises(OutOfDeviceMemoryError):
        gpu.allocate_shared(1)
    monkeypatch.delenv("ZSE_STUB_FAIL")
    assert stub.bytes_of(PIECE_KIND) == 0
    gpu.allocate_shared(1).free()


def test_memory_that_cannot_be_mapped_is_told_as_gpus_that_do_not_see_each_other(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = gpu.allocate_shared(1)
    descriptor = own.export()
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemSetAccess:999")
    with breaks(CudaRule.NO_PEER_ACCESS, match=r"cuda:0 cannot map 2097152 bytes .*999"):
        gpu.open_shared(descriptor, 1)
    os.close(descriptor)


def test_a_descriptor_of_anything_else_is_refused(gpu: Gpu, stub: Stub) -> None:
    reading, writing = os.pipe()
    with pytest.raises(CudaError, match="cuMemImportFromShareableHandle"):
        gpu.open_shared(reading, PIECE)
    os.close(reading)
    os.close(writing)
    assert stub.bytes_of(PIECE_KIND) == 0


def test_a_block_cannot_be_exported_after_it_was_freed(gpu: Gpu) -> None:
    block = gpu.allocate_shared(1)
    block.free()
    block.free()
    with breaks(CudaRule.RELEASED, match="shared device memory"):
        block.export()


def test_pages_of_the_host_are_mapped_until_they_are_freed(gpu: Gpu) -> None:
    pages = mmap.mmap(-1, 4096)
    first = c_char.from_buffer(pages)
    mapped = gpu.map_host(addressof(first), 4096)
    assert mapped.address == addressof(first)  # as the stub maps it
    mapped.free()
    with breaks(CudaRule.RELEASED, match="mapped memory"):
        mapped.address  # noqa: B018
    del first
    pages.close()


@pytest.mark.parametrize(("setting", "kind"), [("0", "none"), ("1", "pcie"), ("2", "nvlink")])
def test_links_are_told_by_what_they_carry(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, setting: str, kind: str
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "3")
    monkeypatch.setenv("ZSE_STUB_LINK", setting)
    links = read_links(stub.driver())
    assert [(link.ordinal, link.other) for link in links] == [
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    assert {link.kind for link in links} == {kind}


def test_a_gpu_that_cannot_reach_another_one_says_so(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    assert gpu.link_to(1).kind == "pcie"
    monkeypatch.setenv("ZSE_STUB_LINK", "0")
    with breaks(CudaRule.NO_PEER_ACCESS, match="GPU 0 cannot reach the memory of GPU 1"):
        gpu.link_to(1)
    with breaks(CudaRule.NO_DEVICE, match="there is no GPU 2"):
        gpu.link_to(2)


def test_a_stream_waits_for_a_number_of_the_hosts_memory_and_writes_one(gpu: Gpu) -> None:
    pages = mmap.mmap(-1, 4096)
    first = c_char.from_buffer(pages)
    mapped, stream = gpu.map_host(addressof(first), 4096), gpu.create_stream()
    pages[12:16] = (7).to_bytes(4, "little")
    for value in (6, 7, 2**32 - 9):  # which the number has gone past, counted round
        gpu.wait_for_value(mapped.address + 12, value, stream)
    with pytest.raises(CudaError):
        gpu.wait_for_value(mapped.address + 12, 8, stream)  # nobody would ever write it
    gpu.write_value(mapped.address + 20, 9, stream)
    stream.synchronize()
    assert pages[20:24] == (9).to_bytes(4, "little")
    mapped.free()
    del first
    pages.close()
