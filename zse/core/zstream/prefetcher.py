"""Brings layers to the device before they are asked for, by threads with a stream each.

What is asked for next is guessed: the following ones (``sequential``), what has followed before
(``adaptive``), or of the following ones those first that were waited for longest (``attention``).
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Strategy: TypeAlias = Literal["sequential", "adaptive", "attention"]
Tensors: TypeAlias = dict[str, torch.Tensor]
_STRATEGIES = ("sequential", "adaptive", "attention")
_WEIGHT = 0.2
"""Of the newest measurement in an average."""


class AsyncPrefetcher:
    """Copies of layers that are on their way.

    Args:
        fetch: Returns a layer's tensors on the device; called in a thread of the prefetcher.
        num_layers: Layers go round: after the last comes the first.
        device: Where they go.
        num_streams: Copies at a time.
        strategy: Which layers are guessed.
    """

    def __init__(
        self,
        fetch: Callable[[int], Tensors],
        num_layers: int,
        *,
        device: torch.device,
        num_streams: int = 2,
        strategy: Strategy = "sequential",
    ) -> None:
        if strategy not in _STRATEGIES:
            raise UsageError(f"strategy is {strategy!r}, expected one of {', '.join(_STRATEGIES)}")
        if num_layers < 1 or num_streams < 1:
            raise UsageError(f"{num_layers} layers by {num_streams} streams: at least 1 of each")
        self._fetch = fetch
        self._num_layers = num_layers
        self._device = device
        self._strategy = strategy
        self._pool = ThreadPoolExecutor(num_streams, thread_name_prefix="zse-prefetch")
        self._lock = threading.Lock()
        self._local = threading.local()
        self._coming: dict[int, Future[Tensors]] = {}
        self._followed: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._waited: defaultdict[int, float] = defaultdict(float)
        self._last: int | None = None
        self.bytes_per_second = 0.0
        """A running average of copies; 0 before the first."""

    def guess(self, index: int, count: int) -> list[int]:
        """Return the layers that are likely to come after ``index``, the likeliest first."""
        following = [
            (index + step) % self._num_layers for step in range(1, min(count, self._num_layers) + 1)
        ]
        if self._strategy == "adaptive":
            known = [layer for layer, _ in self._followed[index].most_common(count)]
            return list(dict.fromkeys([*known, *following]))[:count]
        if self._strategy == "attention":
            return sorted(following, key=lambda layer: -self._waited[layer])
        return following

    def prefetch(self, index: int) -> None:
        """Send a layer on its way, unless it is."""
        with self._lock:
            if index not in self._coming:
                self._coming[index] = self._pool.submit(self._bring, index)

    def take(self, index: int) -> Tensors:
        """Return a layer's tensors, for which it waits where they are not there yet."""
        with self._lock:
            coming = self._coming.pop(index, None)
            if self._last is not None:
                self._followed[self._last][index] += 1
            self._last = index
        started = perf_counter()
        tensors = self._bring(index) if coming is None else coming.result()
        spent = perf_counter() - started
        self._waited[index] += _WEIGHT * (spent - self._waited[index])
        return tensors

    def coming(self) -> list[int]:
        """Return the layers that are on their way, or there and not taken."""
        with self._lock:
            return list(self._coming)

    def drop(self, index: int) -> None:
        """Give up what was sent on its way and is not needed after all."""
        with self._lock:
            coming = self._coming.pop(index, None)
        if coming is not None:
            coming.cancel()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._coming.clear()

    def _bring(self, index: int) -> Tensors:
        started = perf_counter()
        if self._device.type == "cuda":
            stream = self._stream()
            with torch.cuda.stream(stream):
                tensors = self._fetch(index)
            stream.synchronize()
            for tensor in tensors.values():  # or its memory could be given to the copying stream
                tensor.record_stream(torch.cuda.default_stream(self._device))
        else:
            tensors = self._fetch(index)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        rate = size / max(perf_counter() - started, 1e-9)
        with self._lock:
            before = self.bytes_per_second or rate
            self.bytes_per_second = before + _WEIGHT * (rate - before)
        return tensors

    def _stream(self) -> torch.cuda.Stream:
        if not hasattr(self._local, "stream"):
            self._local.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._local.stream
        return stream
