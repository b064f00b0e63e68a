"""Graphs on the stub driver: nothing happens while recording, everything when launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from stub_libcuda import Stub, image

from zse.device.cuda.errors import CudaRule

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu


def test_a_graph_does_again_what_was_recorded(gpu: Gpu, stub: Stub) -> None:
    stream = gpu.create_stream()
    block, host = gpu.allocate(64), gpu.allocate_host(64)
    gpu.fill(block.address, 1, 64, stream)
    kernel = gpu.load_module(image("k=4")).kernel("k", ["i32"], num_threads=32)
    with gpu.capture(stream) as capture:
        gpu.fill(block.address, 9, 32, stream)
        for number in (11, 12):
            kernel.launch((1, 1, 1), stream, number)
        gpu.copy_to_host(host.address, block.address, 64, stream)
    assert stub.launches() == []
    assert capture.graph.num_nodes == 4
    ready = capture.graph.instantiate()
    capture.graph.destroy()
    ready.upload(stream)
    for _ in range(3):
        ready.launch(stream)
    stream.synchronize()
    assert bytes(host.view) == b"\x09" * 32 + b"\x01" * 32
    assert [launch.parameters for launch in stub.launches()] == [(11,), (12,)] * 3
    ready.destroy()
    ready.destroy()
    with breaks(CudaRule.RELEASED, match="a graph was used"):
        ready.launch(stream)


def test_memory_may_be_allocated_and_code_loaded_while_recording(gpu: Gpu) -> None:
    stream = gpu.create_stream()
    with gpu.capture(stream) as capture:
        gpu.allocate(64)
        gpu.load_module(image("k=4"))
    assert capture.graph.num_nodes == 0


def test_an_error_while_recording_travels_and_the_stream_is_usable_again(
    gpu: Gpu, stub: Stub
) -> None:
    stream = gpu.create_stream()
    live = stub.live()
    with pytest.raises(ZeroDivisionError), gpu.capture(stream) as capture:
        _ = 1 / 0
    assert stub.live() == live
    with breaks(CudaRule.CAPTURE, match="only after its capture has ended"):
        capture.graph  # noqa: B018
    stream.synchronize()


def test_waiting_for_a_stream_that_is_recorded_is_an_error(gpu: Gpu) -> None:
    stream = gpu.create_stream()
    with breaks(CudaRule.CAPTURE), gpu.capture(stream):
        stream.synchronize()


def test_a_recording_that_the_driver_gave_up_is_told(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = gpu.create_stream()
    with breaks(CudaRule.CAPTURE, match="previous error during capture"):  # noqa: SIM117
        with gpu.capture(stream):
            monkeypatch.setenv("ZSE_STUB_FAIL", "cuStreamEndCapture:901")


def test_a_fault_of_a_graph_is_told(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = gpu.create_stream()
    with gpu.capture(stream) as capture:
        pass
    ready = capture.graph.instantiate()
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuGraphLaunch:700")
    with breaks(CudaRule.DEVICE_FAULT, match="cuGraphLaunch"):
        ready.launch(stream)
