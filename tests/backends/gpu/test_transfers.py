"""Pinned buffers between host and device: they grow, and survive a machine that cannot pin."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from host_gpu import HostBuffer, HostGpu

from zse.backends.gpu.transfers import RING, GrowingBuffer, StagingRing
from zse.errors import DeviceError

if TYPE_CHECKING:
    from zse.device.gpu import Gpu, Stream

LARGE = 1 << 20


class ShortOfMemory(HostGpu):
    """Pins nothing while it is told to."""

    is_short = False

    def allocate_host(self, length_bytes: int) -> HostBuffer:
        if self.is_short:
            raise DeviceError("the host cannot pin so much")
        return super().allocate_host(length_bytes)


@pytest.fixture
def gpu() -> ShortOfMemory:
    found = ShortOfMemory()
    found.make_current()
    return found


def test_a_buffer_grows_when_more_is_asked_for_and_stays_otherwise(gpu: ShortOfMemory) -> None:
    buffer = GrowingBuffer(cast("Gpu", gpu))
    small = buffer.of(100)
    assert buffer.of(small.length_bytes) is small
    large = buffer.of(LARGE)
    assert large.length_bytes >= LARGE
    assert gpu.live == {large}


def test_a_buffer_that_could_not_grow_is_made_anew_by_the_next_step(gpu: ShortOfMemory) -> None:
    ring = StagingRing(cast("Gpu", gpu))
    stream = cast("Stream", gpu.create_stream())
    device = gpu.memory(LARGE)
    for _ in range(RING):
        ring.acquire(100)
        ring.send(device, 100, stream)
    gpu.is_short = True
    with pytest.raises(DeviceError, match="cannot pin"):
        ring.acquire(LARGE)
    gpu.is_short = False
    again = ring.acquire(100)
    again.view[:3] = b"abc"
    ring.send(device, 3, stream)
    stream.synchronize()
    assert gpu.bytes_of(device)[:3] == b"abc"
