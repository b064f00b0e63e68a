"""A pool that grows in place, on the stub driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from stub_libcuda import PIECE_KIND, Stub

from zse.device.cuda.errors import CudaError, CudaRule, OutOfDeviceMemoryError
from zse.device.cuda.pool import VirtualPool

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu

PIECE = 2 << 20


def test_a_pool_takes_no_memory_until_it_grows_and_never_moves(gpu: Gpu, stub: Stub) -> None:
    pool = VirtualPool(gpu, 10 * PIECE - 5)
    address = pool.address
    assert (pool.granularity_bytes, pool.reserved_bytes, pool.length_bytes) == (
        PIECE,
        10 * PIECE,
        0,
    )
    assert stub.bytes_of(PIECE_KIND) == 0
    assert pool.grow(1) == PIECE
    stream = gpu.create_stream()
    gpu.fill(address, 3, PIECE, stream)
    assert pool.grow(3 * PIECE) == 3 * PIECE
    assert pool.grow(PIECE) == 3 * PIECE
    assert pool.address == address
    assert stub.bytes_of(PIECE_KIND) == 3 * PIECE
    host = gpu.allocate_host(PIECE)
    gpu.copy_to_host(host.address, address, PIECE, stream)
    stream.synchronize()
    assert bytes(host.view[:: PIECE // 8]) == b"\3" * 8
    pool.free()
    pool.free()
    assert stub.bytes_of(PIECE_KIND) == 0
    with breaks(CudaRule.RELEASED, match="a memory pool"):
        pool.grow(PIECE)


def test_a_pool_that_cannot_grow_is_as_before(gpu: Gpu, stub: Stub) -> None:
    pool = VirtualPool(gpu, 4 << 30)
    pool.grow(PIECE)
    with pytest.raises(OutOfDeviceMemoryError, match=r"asked, 1\.07 GB of 1\.07 GB are free"):
        pool.grow(2 << 30)
    assert pool.length_bytes == PIECE
    assert pool.grow(5 * PIECE) == 5 * PIECE
    assert stub.bytes_of(PIECE_KIND) == 5 * PIECE


@pytest.mark.parametrize("failing", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_piece_that_fails_half_way_is_given_back(
    gpu: Gpu, stub: Stub, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    pool = VirtualPool(gpu, 4 * PIECE)
    live = stub.live()
    monkeypatch.setenv("ZSE_STUB_FAIL", f"{failing}:999")
    with pytest.raises(CudaError, match=f"{failing}: CUDA_ERROR_UNKNOWN"):
        pool.grow(PIECE)
    assert stub.live() == live
    monkeypatch.delenv("ZSE_STUB_FAIL")
    assert pool.grow(PIECE) == PIECE


def test_a_pool_does_not_grow_beyond_what_was_reserved(gpu: Gpu) -> None:
    pool = VirtualPool(gpu, PIECE)
    with pytest.raises(CudaError, match=f"pool of {PIECE} bytes cannot grow to {PIECE + 1}"):
        pool.grow(PIECE + 1)
