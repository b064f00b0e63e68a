"""The survey of all GPUs on the stub driver: it never fails, and leaves nothing open."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest
from stub_libcuda import build, stub

from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.device.survey import survey_cuda

if TYPE_CHECKING:
    from stub_libcuda import Stub

__all__ = ["stub"]


def test_every_gpu_is_described_and_closed_again(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    survey = survey_cuda(stub.driver())
    assert (survey.driver_version, survey.problem) == ("12.4", None)
    assert [gpu.info.ordinal for gpu in survey.gpus] == [0, 1]
    assert all(gpu.problem is None and gpu.info.free_bytes == 1 << 30 for gpu in survey.gpus)


def test_a_survey_starts_a_driver_that_nobody_has_started() -> None:
    fresh = Driver(str(build("-DNOT_STARTED")))  # a library of its own
    assert len(survey_cuda(fresh).gpus) == 1


def test_a_gpu_that_is_in_use_stays_current_behind_a_survey_of_several(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_DEVICES", "2")
    driver = stub.driver()
    with Gpu.open(driver=driver):
        before = driver.read(ctypes.c_void_p, "cuCtxGetCurrent")
        survey_cuda(driver)
        assert driver.read(ctypes.c_void_p, "cuCtxGetCurrent") == before != 0


def test_a_gpu_that_cannot_be_opened_is_described_with_what_is_in_the_way(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuDevicePrimaryCtxRetain:2")
    (gpu,) = survey_cuda(stub.driver()).gpus
    assert (gpu.info.name, gpu.info.free_bytes) == ("Stub GPU", 0)
    assert gpu.problem is not None
    assert "even to be opened" in gpu.problem.message
    assert gpu.problem.hint


@pytest.mark.parametrize(
    ("name", "value", "version", "words"),
    [
        ("ZSE_STUB_VERSION", "11040", "11.4", "speaks CUDA 11.4; 12.3 or newer is needed"),
        ("ZSE_STUB_DEVICES", "0", "12.4", "shows no GPU"),
        ("ZSE_STUB_FAIL", "cuInit:100", "12.4", "CUDA_ERROR_NO_DEVICE"),
        ("ZSE_STUB_FAIL", "cuDriverGetVersion:803", "", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ],
)
def test_a_machine_without_a_usable_gpu_says_why(
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    version: str,
    words: str,
) -> None:
    monkeypatch.setenv(name, value)
    survey = survey_cuda(stub.driver())
    assert (survey.gpus, survey.driver_version) == ((), version)
    assert survey.problem is not None
    assert words in survey.problem.message
    assert survey.problem.hint


def test_no_driver_is_a_survey_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zse.device.cuda.library.LIBRARY_NAME", "no-such-libcuda.so")
    survey = survey_cuda()
    assert (survey.gpus, survey.driver_version) == ((), "")
    assert survey.problem is not None
    assert "no CUDA driver" in survey.problem.message
