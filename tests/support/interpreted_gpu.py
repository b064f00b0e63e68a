"""A GPU made of host memory and Triton's interpreter: the GPU backend runs on it, slowly.

It has the surface of ``zse.device.gpu.Gpu`` that the backend uses. Work is done at once, except
while a stream is captured: then it is written down, and done each time the graph is launched. New
memory is filled with a pattern, so that what reads memory nobody wrote does not go unnoticed.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from interpreted import InterpretedLauncher

from zse.device.facts import GpuInfo
from zse.device.facts_of_gpus import H200

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value
    from zse.kernels.variant import Variant

POISON = 0xC7
# Few multiprocessors, so that work is split into few programs: each takes milliseconds here.
SMALL_GPU = replace(H200, multiprocessors=2)
ALIGNMENT = 256


class HostMemory:
    """Bytes of the host that stand for device or pinned memory."""

    def __init__(self, length_bytes: int) -> None:
        self._buffer = (ctypes.c_ubyte * (length_bytes + ALIGNMENT))()
        start = ctypes.addressof(self._buffer)
        self.address = -(-start // ALIGNMENT) * ALIGNMENT
        self.length_bytes = length_bytes
        array = (ctypes.c_ubyte * length_bytes).from_address(self.address)
        self.view = memoryview(array).cast("B")
        ctypes.memset(self.address, POISON, length_bytes)

    def free(self) -> None:
        ctypes.memset(self.address, POISON, self.length_bytes)


class HostPool(HostMemory):
    """Memory that is all there from the start."""

    def __init__(self, reserve_bytes: int) -> None:
        super().__init__(min(reserve_bytes, 64 << 20))

    def grow(self, to_bytes: int) -> int:
        assert to_bytes <= self.length_bytes
        return self.length_bytes


class HostStream:
    """Work is done when it is put in, so there is nothing to wait for."""

    def __init__(self) -> None:
        self.recorded: list[Callable[[], None]] | None = None

    def synchronize(self) -> None:
        assert self.recorded is None, "a captured stream cannot be waited for"

    def put(self, work: Callable[[], None]) -> None:
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)

    def destroy(self) -> None:
        pass


class HostEvent:
    def record(self, stream: HostStream) -> None:
        assert stream.recorded is None

    def synchronize(self) -> None:
        pass

    def destroy(self) -> None:
        pass


@dataclass
class HostGraph:
    """Both the graph and its executable form."""

    works: list[Callable[[], None]]

    def instantiate(self) -> HostGraph:
        return self

    def upload(self, stream: HostStream) -> None:
        pass

    def launch(self, stream: HostStream) -> None:
        for work in self.works:
            stream.put(work)

    def destroy(self) -> None:
        pass


@dataclass
class HostCapture:
    graph: HostGraph


INFO = GpuInfo(
    **asdict(SMALL_GPU),
    total_bytes=1 << 30,
    free_bytes=1 << 30,
    driver_version=12040,
    ordinal=0,
    uuid="GPU-0",
)


class InterpretedGpu:
    """Stands for ``zse.device.gpu.Gpu``."""

    info = INFO
    name = "cuda:0"

    def __init__(self, free_bytes: int = 1 << 30) -> None:
        self.free_bytes = free_bytes

    def make_current(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.free_bytes, 1 << 30

    def allocate(self, length_bytes: int) -> HostMemory:
        return HostMemory(length_bytes)

    def allocate_host(self, length_bytes: int) -> HostMemory:
        return HostMemory(length_bytes)

    def create_pool(self, reserve_bytes: int) -> HostPool:
        return HostPool(reserve_bytes)

    def copy_functions(self) -> None:
        """Return nothing: all that happens here is Python."""

    def create_stream(self) -> HostStream:
        return HostStream()

    def create_event(self, *, timing: bool = False) -> HostEvent:
        return HostEvent()

    def copy_to_device(
        self, destination: int, source: int, length: int, stream: HostStream
    ) -> None:
        stream.put(lambda: copy(destination, source, length))

    copy_to_host = copy_to_device
    copy_on_device = copy_to_device

    def fill(self, address: int, byte: int, length: int, stream: HostStream) -> None:
        stream.put(lambda: fill(address, byte, length))

    @contextmanager
    def capture(self, stream: HostStream) -> Iterator[HostCapture]:
        capture = HostCapture(HostGraph([]))
        stream.recorded = capture.graph.works
        try:
            yield capture
        finally:
            stream.recorded = None

    def close(self) -> None:
        pass


class StreamLauncher:
    """Puts interpreted kernels into a stream."""

    def __init__(self, stream: HostStream) -> None:
        self._interpreter = InterpretedLauncher()
        self._stream = stream
        self._loaded: set[str] = set()
        self.device = SMALL_GPU
        self.launched = self._interpreter.launched

    def prepare(self, *variants: Variant) -> None:
        assert self._stream.recorded is None
        self._loaded.update(variant.key for variant in variants)

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        if self._stream.recorded is None:
            self._loaded.add(variant.key)
        assert variant.key in self._loaded, "a stream that is captured loads no code"
        self._stream.put(lambda: self._interpreter.launch(variant, grid, *arguments))


def copy(destination: int, source: int, length: int) -> None:
    ctypes.memmove(destination, source, length)


def fill(address: int, byte: int, length: int) -> None:
    ctypes.memset(address, byte, length)
