"""Each way in which a driver can fail has its class, its words and its way out."""

from __future__ import annotations

import re

import pytest
from broken_rules import breaks
from stub_libcuda import Stub, build

from zse.device.cuda.errors import (
    FAULT_CODES,
    CudaError,
    CudaRule,
    DeviceBusyError,
    OutOfDeviceMemoryError,
    error_for,
)
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.errors import DeviceError


def test_every_code_becomes_a_device_error_with_the_drivers_words() -> None:
    for code in range(1, 1000):
        error = error_for("cuSomething", code, "CUDA_ERROR_X", "some text")
        assert isinstance(error, DeviceError)
        assert str(error) == f"cuSomething: CUDA_ERROR_X ({code}): some text"
        assert (error.function, error.code, error.name) == ("cuSomething", code, "CUDA_ERROR_X")
        assert (error.rule is CudaRule.DEVICE_FAULT) == (code in FAULT_CODES)
        assert error.exit_code == 10


def test_no_driver_library_says_how_to_get_one() -> None:
    with breaks(CudaRule.NO_DRIVER, match=r"no-such-libcuda\.so") as caught:
        Driver("no-such-libcuda.so")
    assert "--gpus all" in caught.value.hint
    assert "--device cpu" in caught.value.hint


def test_an_old_driver_is_named_with_what_is_needed(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_VERSION", "11080")
    with breaks(CudaRule.DRIVER_TOO_OLD, match=re.escape("CUDA 11.8; 12.3 or newer")) as caught:
        Gpu.open(driver=stub.driver())
    assert "545" in caught.value.hint


def test_a_function_that_the_driver_lacks_means_that_it_is_too_old() -> None:
    old = Driver(str(build("-DOLD_DRIVER")))
    with breaks(CudaRule.DRIVER_TOO_OLD, match="no function cuGraphInstantiateWithFlags"):
        old.raw("cuGraphInstantiateWithFlags")


@pytest.mark.parametrize(
    ("failing", "kind", "words"),
    [
        ("cuInit:100", CudaRule.NO_DEVICE, r"cuInit: CUDA_ERROR_NO_DEVICE \(100\)"),
        ("cuInit:803", CudaRule.DRIVER_MISMATCH, "unsupported display driver"),
        ("cuInit:999", CudaError, r"CUDA_ERROR_UNKNOWN \(999\): unknown error"),
        ("cuInit:12345", CudaError, r"unknown to the driver \(12345\)"),
        ("cuDriverGetVersion:34", CudaRule.NO_DRIVER, "cuDriverGetVersion"),
        ("cuDevicePrimaryCtxRetain:46", DeviceBusyError, "busy or unavailable"),
        ("cuDevicePrimaryCtxRetain:2", OutOfDeviceMemoryError, "even to be opened"),
        ("cuDevicePrimaryCtxRetain:805", DeviceBusyError, "cuDevicePrimaryCtxRetain"),
        ("cuCtxSetCurrent:700", CudaRule.DEVICE_FAULT, "illegal memory access"),
        ("cuDeviceGetAttribute:214", CudaRule.DEVICE_FAULT, "ECC"),
        ("cuMemGetInfo_v2:702", CudaRule.DEVICE_FAULT, "timed out"),
    ],
)
def test_opening_a_gpu_that_fails_says_which_way_and_keeps_nothing(
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    kind: type[CudaError] | CudaRule,
    words: str,
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", failing)
    with pytest.raises(CudaError, match=words) as caught:
        Gpu.open(driver=stub.driver())
    assert (caught.value.rule or type(caught.value)) is kind
    assert caught.value.hint or failing == "cuInit:12345"
    assert stub.live() == 0


def test_a_gpu_that_is_not_there_is_told_from_those_that_are(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with breaks(CudaRule.NO_DEVICE, match="no GPU 1: 1 GPU is visible"):
        Gpu.open(1, driver=stub.driver())
    monkeypatch.setenv("ZSE_STUB_DEVICES", "0")
    with breaks(CudaRule.NO_DEVICE, match="no GPU 0: 0 GPUs are visible"):
        Gpu.open(driver=stub.driver())


def test_the_compute_mode_that_keeps_a_process_out_is_named(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_MODE", "2")
    with pytest.raises(DeviceBusyError, match="PROHIBITED"):
        Gpu.open(driver=stub.driver())
    monkeypatch.setenv("ZSE_STUB_MODE", "3")
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuDevicePrimaryCtxRetain:46")
    with pytest.raises(DeviceBusyError, match="EXCLUSIVE_PROCESS and another process") as caught:
        Gpu.open(driver=stub.driver())
    assert caught.value.code == 46
