"""Layers of a torch module in a window: those used last are on the device, the others wait.

A layer's parameters point at the copy on the device while it is in the window, and at the host's
when it is not, so the module can be used and saved as before at any time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from zse.core.zstream.offload import OffloadManager
from zse.core.zstream.prefetcher import AsyncPrefetcher, Strategy, Tensors
from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence


@record
class StreamerStats:
    """What a streamer has done."""

    hits: int
    """Layers that were on the device when they were asked for."""
    misses: int
    evictions: int
    resident_layers: int
    bytes_per_second: float
    """Of copies to the device, on average."""


class LayerStreamer:
    """The window over some layers. Thread-safe.

    Args:
        layers: In the order of their execution.
        gpu_layers: Size of the window.
        prefetch_layers: Layers that are sent on their way ahead.
        device: Where layers are computed.
        offload: Where they are otherwise; all in memory when not given.
    """

    def __init__(
        self,
        layers: Sequence[torch.nn.Module],
        gpu_layers: int = 4,
        prefetch_layers: int = 2,
        *,
        device: str | torch.device = "cuda",
        offload: OffloadManager | None = None,
        strategy: Strategy = "sequential",
        num_streams: int = 2,
    ) -> None:
        if not layers:
            raise UsageError("there are no layers to stream")
        if gpu_layers < 1 or prefetch_layers < 0:
            raise UsageError(
                f"a window of {gpu_layers} layers, {prefetch_layers} ahead: expected at least 1 "
                "and 0"
            )
        self._layers = list(layers)
        self._ahead = min(prefetch_layers, len(layers) - 1)
        self.window = min(gpu_layers, len(layers))
        self.device = torch.device(device)
        self._owns_offload = offload is None
        self.offload = offload or OffloadManager()
        self._lock = threading.RLock()
        self._resident: OrderedDict[int, None] = OrderedDict()
        self._hits = self._misses = self._evictions = 0
        self._tensors = [_tensors_of(layer) for layer in self._layers]
        for index, tensors in enumerate(self._tensors):
            self.offload.keep(_name(index), {key: slot.data for key, slot in tensors.items()})
            self._point(index, self.offload.host(_name(index)))
        self._prefetcher = AsyncPrefetcher(
            lambda index: self.offload.fetch(_name(index), self.device, waits=False),
            len(self._layers),
            device=self.device,
            strategy=strategy,
            num_streams=num_streams,
        )

    @property
    def resident(self) -> list[int]:
        """The layers in the window, the one used longest ago first."""
        with self._lock:
            return list(self._resident)

    def layer_bytes(self, index: int) -> int:
        return self.offload.size_bytes(_name(index))

    def acquire(self, index: int) -> torch.nn.Module:
        """Return a layer that is on the device; it stays until as many others were asked for."""
        with self._lock:
            if index in self._resident:
                self._hits += 1
            else:
                self._misses += 1
                self._make_room(self.window - 1)
                self._point(index, self._prefetcher.take(index))
            self._resident[index] = None
            self._resident.move_to_end(index)
            self._look_ahead(index)
        return self._layers[index]

    def resize(self, gpu_layers: int) -> None:
        """Change the window, by which layers may have to leave at once."""
        if gpu_layers < 1:
            raise UsageError(f"a window of {gpu_layers} layers was asked for; expected at least 1")
        with self._lock:
            self.window = min(gpu_layers, len(self._layers))
            self._make_room(self.window)
            for index in self._prefetcher.coming():
                self._prefetcher.drop(index)

    def evict(self, index: int) -> None:
        """Have a layer leave the device now."""
        with self._lock:
            if index in self._resident:
                del self._resident[index]
                self._evictions += 1
                self._point(index, self.offload.host(_name(index)))

    def stats(self) -> StreamerStats:
        with self._lock:
            return StreamerStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                resident_layers=len(self._resident),
                bytes_per_second=self._prefetcher.bytes_per_second,
            )

    def close(self) -> None:
        """Bring every layer back to the host; its parameters are ordinary ones again."""
        self._prefetcher.close()
        for index in self.resident:
            self.evict(index)
        if self._owns_offload:
            for index in range(len(self._layers)):
                held = self.offload.host(_name(index))
                if self.offload.tier(_name(index)) == "disk":
                    held = {key: tensor.clone() for key, tensor in held.items()}
                self._point(index, held)
            self.offload.close()

    def _make_room(self, left: int) -> None:
        while len(self._resident) > left:
            self.evict(next(iter(self._resident)))

    def _look_ahead(self, index: int) -> None:
        """Send the next ones, for which there is memory: a copy ahead is beside the window."""
        for following in self._prefetcher.guess(index, self._ahead):
            if following not in self._resident:
                self._prefetcher.prefetch(following)

    def _point(self, index: int, tensors: Tensors) -> None:
        for key, slot in self._tensors[index].items():
            slot.data = tensors[key]


def _name(index: int) -> str:
    return f"layers.{index}"


def _tensors_of(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
