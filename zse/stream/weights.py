"""The weights of a model that streams: its plan, its memory, what brings layers, what lets go."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.records import record
from zse.stream.pinned import PinnedCopies
from zse.stream.pump import LayerPump, PumpOptions
from zse.stream.tracker import MemoryPressure, MemoryTracker, PressureLimits
from zse.stream.window import WindowBlocks, WindowPlacement
from zse.units import MIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.device.gpu import Gpu, Stream
    from zse.format.spec import ZSEHeader
    from zse.stream.fit import WindowPlan
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.stream")
CHUNK_BYTES = 8 << 20
LIMITS = PressureLimits(high=256 * MIB, critical=128 * MIB, oom=32 * MIB)
"""Half a gigabyte was left free at the start; captured steps and the driver take some of it."""
_LOOK_SECONDS = 0.25


@record
class StreamFacts:
    """What streams, and what has been done."""

    resident_layers: int
    streamed_layers: int
    slots: int
    resident_bytes: int
    """Of weights that stay."""
    streamed_bytes: int
    """That pass for each step."""
    pinned_bytes: int
    """Of the host, that hold copies of layers."""
    link_bytes_per_second: float
    """From pinned memory, as it was measured when the model was loaded; 0 before."""
    passed_bytes: int
    """That have passed so far."""
    waited_seconds: float
    """That steps have waited for layers so far."""

    @property
    def most_steps_per_second(self) -> float:
        """The bound: no step is done before its layers have passed."""
        return self.link_bytes_per_second / self.streamed_bytes


class StreamedWeights:
    """Memory on a GPU, the pump that fills its slots, and copies in pinned memory.

    Args:
        source: The file; it is closed with the weights.
        header: Of what is loaded.
        plan: What stays and what streams.
        pinned_bytes: Memory of the host for pinned copies, at most.

    Raises:
        DeviceError: The memory of the plan is not free.
    """

    def __init__(
        self,
        gpu: Gpu,
        source: ByteSource,
        header: ZSEHeader,
        plan: WindowPlan,
        *,
        pinned_bytes: int = 0,
        options: PumpOptions | None = None,
    ) -> None:
        self._gpu = gpu
        self.source = source
        self._header = header
        self._options = options
        self._layer_bytes = {group.name: group.length_bytes for group in header.groups}
        self.plan = plan
        self.blocks = WindowBlocks(gpu, plan, self._layer_bytes)
        self.placement = WindowPlacement(header, plan, self.blocks)
        self._pinned = PinnedCopies(gpu, source, pinned_bytes)
        self._tracker = MemoryTracker(gpu.memory, LIMITS)
        self._stream: Stream | None = None
        self._pump: LayerPump | None = None
        self._before = (0, 0.0)
        self.link_bytes_per_second = 0.0

    def facts(self) -> StreamFacts:
        pump = self._pump
        passed, waited = self._before
        return StreamFacts(
            resident_layers=len(self.plan.resident),
            streamed_layers=len(self.plan.streamed),
            slots=self.plan.slots,
            resident_bytes=self.plan.resident_bytes + self.plan.ends_bytes,
            streamed_bytes=self.plan.streamed_bytes,
            pinned_bytes=self.pinned_bytes,
            link_bytes_per_second=self.link_bytes_per_second,
            passed_bytes=passed + (pump.passed_bytes if pump else 0),
            waited_seconds=waited + (pump.waited_seconds if pump else 0.0),
        )

    @property
    def pump(self) -> LayerPump:
        assert self._pump is not None, "layers are asked for before they stream"
        return self._pump

    @property
    def pinned_bytes(self) -> int:
        """Memory of the host that holds copies now."""
        return self._pinned.held_bytes

    def number_of(self, name: str) -> int | None:
        """Return which of the layers that stream a group is; None for one that stays."""
        streamed = self.plan.streamed
        return streamed.index(name) if name in streamed else None

    def is_in_slot(self, address: int) -> bool:
        return any(
            block.address <= address < block.address + block.length_bytes
            for block in self.blocks.slots
        )

    def use_stream(self, stream: Stream) -> None:
        """Say where kernels that read the slots are put."""
        self._stream = stream

    def start(self) -> None:
        """Begin to bring layers; what stays is there."""
        self._begin_pump()
        self._pinned.begin(self.placement.streamed_reads(CHUNK_BYTES))

    def wait_pinned(self) -> None:
        """Wait until all that may have pinned copies has them."""
        self._pinned.wait()

    def make_room(self) -> int:
        """Give up resident layers while the device is short of memory; return the bytes.

        Called between passes. If it is not 0, layers have other addresses than before.
        """
        state = self._tracker.update(not_before_seconds=_LOOK_SECONDS)
        if state.pressure is MemoryPressure.NORMAL or not self.plan.resident:
            return 0
        return self.give_up(LIMITS.high - state.free_bytes)

    def give_up(self, wanted_bytes: int) -> int:
        """Have resident layers stream from now on, until so many bytes are free, or all stream.

        Returns:
            The bytes that were given back; if not 0, layers have other addresses than before.
        """
        if not self.plan.resident:
            return 0
        chosen: list[str] = []
        freed = 0
        for name in _spread(self.plan.resident):
            if freed >= wanted_bytes and len(chosen) % self.plan.slots == 0:
                break
            chosen.append(name)
            freed += self.blocks.layers[name].length_bytes
        assert self._stream is not None
        self._stream.synchronize()
        self._end_pump()
        for name in chosen:
            self.blocks.give_up(name)
        self.plan = self.plan.without(self._header, chosen)
        self.placement = WindowPlacement(self._header, self.plan, self.blocks)
        self._begin_pump()
        self._pinned.begin(self.placement.streamed_reads(CHUNK_BYTES))
        _LOG.warning(
            "memory of the GPU is short: %d more layers stream, %s were given back",
            len(chosen),
            memory_text(freed),
        )
        return freed

    def close(self) -> None:
        """End all that runs; the source is closed."""
        self._end_pump()
        self._pinned.close()
        self.source.close()

    def _end_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            passed, waited = self._before
            self._before = passed + pump.passed_bytes, waited + pump.waited_seconds
            pump.close()

    def _begin_pump(self) -> None:
        assert self._stream is not None, "use_stream comes first"
        self._pump = LayerPump(
            self._gpu,
            self.source,
            self.placement.streamed_reads(CHUNK_BYTES),
            self.placement.origin_bytes,
            slots=self.plan.slots,
            stream=self._stream,
            pinned=self._pinned,
            options=self._options,
        )
        self._pump.start()


def _spread(names: Iterable[str]) -> list[str]:
    """Return names in an order in which any first ones lie far apart: halves, then quarters."""
    left = list(names)
    order: list[str] = []
    step = len(left)
    while left and step >= 1:
        order += [name for name in left[step // 2 :: max(step, 1)] if name not in order]
        step //= 2
    return order + [name for name in left if name not in order]
