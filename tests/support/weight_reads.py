"""A GPU whose work is done as late as it may, and a launcher that notes which weights it reads.

What kernels compute is left out. A kernel's pointers that are matrices or vectors of the model are
looked at when the kernel would run: what lies there then is what it would have read.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

from interpreted_gpu import HostStream, InterpretedGpu

from zse.device.facts_of_gpus import H200

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.device.gpu import Grid
    from zse.kernels.launcher import Value
    from zse.kernels.variant import Variant
    from zse.models.runner import ModelRunner

import ctypes


class LateWork(HostStream):
    """Does nothing before somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._waiting: list[Callable[[], None]] = []
        self.count = self._done = 0

    def put(self, work: Callable[[], None]) -> None:
        if self.recorded is not None:
            self.recorded.append(work)
            return
        with self._lock:
            self._waiting.append(work)
            self.count += 1

    def run_until(self, count: int) -> None:
        with self._lock:
            while self._done < count:
                self._waiting.pop(0)()
                self._done += 1

    def synchronize(self) -> None:
        super().synchronize()
        self.run_until(self.count)


class LateMark:
    def __init__(self) -> None:
        self._place: tuple[LateWork, int] | None = None

    def record(self, stream: LateWork) -> None:
        assert stream.recorded is None
        self._place = stream, stream.count

    def synchronize(self) -> None:
        assert self._place is not None
        stream, count = self._place
        stream.run_until(count)

    def destroy(self) -> None:
        pass


class LateGpu(InterpretedGpu):
    def create_stream(self) -> LateWork:
        return LateWork()

    def create_event(self, *, timing: bool = False) -> LateMark:
        return LateMark()


class WeightReads:
    """See ``zse.kernels.launcher.Launcher``: ``reads`` has a line for each kernel that ran."""

    def __init__(self, stream: HostStream) -> None:
        self._stream = stream
        self.device = H200
        self.reads: list[tuple[object, ...]] = []
        self.lengths: dict[int, int] = {}
        self.fails_at = 0
        """The launch from now on that fails; 0 for none."""

    def learn(self, runner: ModelRunner) -> None:
        """Have the addresses of a model's weights looked at from now on."""
        weights = runner._backend._model.weights
        self.lengths = dict.fromkeys(weights.vectors.values(), 64)
        for weight in weights.linears.values():
            self.lengths[weight.weights] = weight.rows * weight.columns // 2
            if weight.scales:
                self.lengths[weight.scales] = weight.rows * 2
        self.reads.clear()

    def prepare(self, *variants: Variant) -> None:
        assert self._stream.recorded is None

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        if self.fails_at and self._stream.recorded is None:
            self.fails_at -= 1
            if not self.fails_at:
                raise RuntimeError("the launch was refused")
        self._stream.put(lambda: self._look(variant, arguments))

    def _look(self, variant: Variant, arguments: tuple[Value, ...]) -> None:
        seen = tuple(
            zlib.crc32(ctypes.string_at(int(value), self.lengths[int(value)]))
            for argument, value in zip(variant.arguments, arguments, strict=True)
            if argument.is_pointer and value in self.lengths
        )
        self.reads.append((variant.key, *seen))
