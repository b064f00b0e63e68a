"""An open GPU on the stub driver: what it says, copies, threads, closing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks

from zse.device.cuda.errors import CudaError, CudaRule
from zse.device.cuda.gpu import Gpu

if TYPE_CHECKING:
    from stub_libcuda import Stub


def test_the_facts_of_a_gpu_are_those_of_the_driver(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_CAPABILITY", "89")
    with Gpu.open(driver=stub.driver()) as gpu:
        info = gpu.info
        assert (info.name, info.target, info.ordinal) == ("Stub GPU", "sm_89", 0)
        assert info.total_bytes == info.free_bytes == 1 << 30
        assert (info.multiprocessors, info.driver_version) == (132, 12040)
        assert (info.shared_memory_optin_bytes, info.l2_bytes) == (232448, 60 << 20)
        assert info.bandwidth_bytes_per_second == pytest.approx(4.917e12, rel=1e-3)
        assert info.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e28"


def test_free_memory_is_read_anew(gpu: Gpu) -> None:
    block = gpu.allocate(1 << 20)
    assert gpu.memory() == ((1 << 30) - (1 << 20), 1 << 30)
    block.free()
    assert gpu.memory() == (1 << 30, 1 << 30)
    assert gpu.info.free_bytes == 1 << 30


def test_a_stack_limit_that_the_driver_refuses_is_the_drivers_error(gpu: Gpu) -> None:
    gpu.limit_stack(256)
    with pytest.raises(CudaError, match=r"cuCtxSetLimit.*CUDA_ERROR_INVALID_VALUE"):
        gpu.limit_stack(0)


def test_closing_gives_back_what_it_can_and_tells_the_first_failure(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu.open(driver=stub.driver())
    gpu.allocate(1 << 20)
    stream = gpu.create_stream()
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuStreamDestroy_v2:999")
    with pytest.raises(CudaError, match="cuStreamDestroy_v2"):
        gpu.close()
    monkeypatch.delenv("ZSE_STUB_FAIL")
    with Gpu.open(driver=stub.driver()) as again:
        assert again.memory() == (1 << 30, 1 << 30)
    assert stream is not None
    stub.reset()  # the driver did not take the stream


def test_bytes_survive_the_way_to_the_device_and_back(gpu: Gpu) -> None:
    length = 5000
    stream = gpu.create_stream()
    out, back = gpu.allocate_host(length), gpu.allocate_host(length)
    first, second = gpu.allocate(length), gpu.allocate(length)
    out.view[:] = bytes(index % 251 for index in range(length))
    gpu.copy_to_device(first.address, out.address, length, stream)
    gpu.copy_on_device(second.address, first.address, length, stream)
    gpu.fill(second.address + 100, 7, 50, stream)
    gpu.copy_to_host(back.address, second.address, length, stream)
    stream.synchronize()
    assert bytes(back.view[:100]) == bytes(out.view[:100])
    assert bytes(back.view[100:150]) == b"\7" * 50
    assert bytes(back.view[150:]) == bytes(out.view[150:])


@pytest.mark.parametrize("work", ["copy_to_device", "copy_to_host", "copy_on_device", "fill"])
def test_work_outside_of_a_block_is_the_drivers_error(gpu: Gpu, work: str) -> None:
    stream = gpu.create_stream()
    with pytest.raises(CudaError, match=r"CUDA_ERROR_INVALID_VALUE \(1\): invalid argument"):
        getattr(gpu, work)(4096, 1, 10, stream)


def test_a_thread_must_make_the_gpu_current(gpu: Gpu) -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            gpu.allocate(16)
        except CudaError as error:
            seen.append(error.hint)
        gpu.make_current()
        gpu.allocate(16).free()
        seen.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 2
    assert "make_current()" in seen[0]


def test_closing_gives_everything_back_and_twice_does_nothing(stub: Stub) -> None:
    gpu = Gpu.open(driver=stub.driver())
    block, stream = gpu.allocate(100), gpu.create_stream()
    gpu.allocate_host(100)
    gpu.create_event()
    assert stub.live() == 5
    gpu.close()
    assert stub.live() == 0
    gpu.close()
    block.free()
    stream.destroy()
    with breaks(CudaRule.RELEASED, match="GPU was used after it had been closed"):
        gpu.make_current()


def test_closing_after_a_fault_does_not_hide_it(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu.open(driver=stub.driver())
    gpu.allocate(100)
    gpu.create_stream()
    lost = "cuMemFree_v2:700,cuStreamDestroy_v2:4,cuDevicePrimaryCtxRelease_v2:700"
    monkeypatch.setenv("ZSE_STUB_FAIL", f"{lost},cuCtxSetCurrent:700")
    gpu.close()
    gpu.close()
    stub.reset()  # what the lost context took with it
