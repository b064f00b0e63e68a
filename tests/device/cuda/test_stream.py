"""Streams and events on the stub driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks

from zse.device.cuda.errors import CudaError, CudaRule

if TYPE_CHECKING:
    from zse.device.cuda.gpu import Gpu


def test_time_passes_between_two_events_with_timing(gpu: Gpu) -> None:
    stream = gpu.create_stream()
    start, end = gpu.create_event(timing=True), gpu.create_event(timing=True)
    start.record(stream)
    end.record(stream)
    assert end.elapsed_ms(start) >= 0
    with pytest.raises(CudaError, match="cuEventElapsedTime"):
        gpu.create_event().elapsed_ms(start)


@pytest.mark.parametrize("failing", ["cuStreamSynchronize", "cuEventSynchronize", "cuEventRecord"])
def test_a_fault_of_a_kernel_is_met_by_whoever_comes_next(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    stream, event = gpu.create_stream(), gpu.create_event()
    calls = {
        "cuStreamSynchronize": stream.synchronize,
        "cuEventSynchronize": event.synchronize,
        "cuEventRecord": lambda: event.record(stream),
    }
    monkeypatch.setenv("ZSE_STUB_FAIL", f"{failing}:700")
    with breaks(CudaRule.DEVICE_FAULT, match="illegal memory access") as caught:
        calls[failing]()
    assert "Restart the process" in caught.value.hint


def test_what_was_destroyed_cannot_be_used(gpu: Gpu) -> None:
    stream, event = gpu.create_stream(), gpu.create_event()
    for resource in (stream, event):
        resource.destroy()
        resource.destroy()
    with breaks(CudaRule.RELEASED, match="a stream was used"):
        stream.synchronize()
    with breaks(CudaRule.RELEASED, match="an event was used"):
        event.synchronize()
