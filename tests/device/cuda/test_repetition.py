"""Kernels launched in rounds: by C and by Python the driver is told the same."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from stub_libcuda import Stub, image

from zse.device.cuda import repetition
from zse.device.cuda.errors import CudaError
from zse.device.loader.library import load_library

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(params=["by C", "by Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by Python":
        monkeypatch.setattr(repetition, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("there is no library of C for this machine")


def half(value: float) -> int:
    return int.from_bytes(struct.pack("<f", value), "little")


def test_each_round_has_its_own_values_at_the_places_and_the_others_of_the_call(
    gpu: Gpu, stub: Stub
) -> None:
    module, stream = gpu.load_module(image("a=8,4", "b=8,8,4")), gpu.create_stream()
    a = module.kernel("a", ["*fp32", "i32"], num_threads=32)
    b = module.kernel("b", ["*u8", "i64", "fp32"], num_threads=64, programmatic=True)
    places = [(0, 0), (1, 1), (1, 2)]
    rounds = [(2**40 + n, -n, n / 2) for n in range(1, 6)]
    repeated = gpu.repetition([a, b], places, rounds)
    calls = [((1, 2, 3), (0, 7)), ((4, 1, 1), (48, 0, 0.0))]
    repeated.launch(stream, calls, range(1, 4))
    found = [(each.name, each.grid, each.parameters) for each in stub.launches()]
    expected = []
    for address, number, share in rounds[1:4]:
        expected.append(("a", (1, 2, 3), (address, 7)))
        expected.append(("b", (4, 1, 1), (48, 2**64 + number, half(share))))
    assert found == expected
    assert [each.programmatic for each in stub.launches()] == [0, 1] * 3


def test_a_later_call_has_other_grids_and_arguments(gpu: Gpu, stub: Stub) -> None:
    stream = gpu.create_stream()
    kernel = gpu.load_module(image("k=8,4")).kernel("k", ["*u8", "i32"], num_threads=32)
    repeated = gpu.repetition([kernel], [(0, 0)], [(16,), (32,)])
    repeated.launch(stream, [((1, 1, 1), (0, 5))], range(2))
    kernel.launch((9, 9, 9), stream, 64, 6)  # which is not the copy's affair
    repeated.launch(stream, [((2, 1, 1), (0, 8))], range(1, 2))
    found = [(each.grid[0], each.parameters) for each in stub.launches()]
    assert found == [(1, (16, 5)), (1, (32, 5)), (9, (64, 6)), (2, (32, 8))]


def test_a_launch_that_the_driver_refuses_ends_the_rounds(gpu: Gpu, stub: Stub) -> None:
    stream = gpu.create_stream()
    kernel = gpu.load_module(image("k=8")).kernel("k", ["*u8"], num_threads=32)
    repeated = gpu.repetition([kernel], [(0, 0)], [(16,), (32,)])
    with pytest.raises(CudaError, match="cuLaunchKernelEx"):
        repeated.launch(stream, [((0, 1, 1), (0,))], range(2))
    assert not stub.launches()


def test_values_that_do_not_fit_are_refused_before_anything_is_launched(gpu: Gpu) -> None:
    kernel = gpu.load_module(image("k=4")).kernel("k", ["i32"], num_threads=32)
    with pytest.raises(CudaError, match="cannot be packed"):
        gpu.repetition([kernel], [(0, 0)], [(2**40,)])
