"""Models larger than memory, from Python: of ``.zse`` files, and of torch modules.

    from zse.core.zstream import StreamingModel

    StreamingModel("big.zse", gpu_layers=4).generate("Hello", max_new_tokens=20)
    StreamingModel(transformers_model, gpu_layers=4, prefetch_layers=2).generate(input_ids)

Files are streamed by zse's own engine; ``zse serve big.zse --vram-gib 24`` does the same. Modules
of torch keep their own arithmetic: hooks bring each layer before it runs.
"""

from __future__ import annotations

from zse.core.zstream.loader import ZSEStreamLoader
from zse.core.zstream.memory_tracker import MemoryPressure, MemoryState, MemoryTracker
from zse.core.zstream.offload import OffloadManager
from zse.core.zstream.prefetcher import AsyncPrefetcher
from zse.core.zstream.streamer import LayerStreamer
from zse.core.zstream.streaming_model import StreamingModel

__all__ = [
    "AsyncPrefetcher",
    "LayerStreamer",
    "MemoryPressure",
    "MemoryState",
    "MemoryTracker",
    "OffloadManager",
    "StreamingModel",
    "ZSEStreamLoader",
]
