"""Kernels of a pack beside torch, and the time of a call in a CUDA graph; needs torch with CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.kernels.launcher import Launcher


class TorchStream:
    """The stream that torch uses now, to a ``PackLauncher``."""

    @property
    def handle(self) -> int:
        return torch.cuda.current_stream().cuda_stream


def pack_launcher(path: Path) -> Launcher:
    """Return a launcher of a pack's kernels on torch's stream."""
    from zse.backends.gpu.launcher import PackLauncher
    from zse.device.cuda.gpu import Gpu
    from zse.kernels.pack import KernelPack

    torch.zeros(1, device="cuda")  # the context that the GPU below shares
    gpu = Gpu.open(0)
    gpu.make_current()
    return PackLauncher(gpu, KernelPack.open(path), TorchStream())


def graph_us(calls: Sequence[Callable[[], object]], *, least: int = 48, replays: int = 9) -> float:
    """Return the median microseconds of one call, from a CUDA graph that makes each at least once.

    Args:
        calls: Taken in turn, so that what one reads is not in the cache when it comes again.
        least: Calls in the graph at least.
        replays: How often the graph is timed.
    """
    repeated = list(calls) * max(1, least // len(calls))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in repeated:
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2] / len(repeated) * 1e3
