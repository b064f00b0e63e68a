"""Other names of what generates text; nothing in zse imports them.

One class answers a text, a list of texts and a stream, and always keeps the KV cache, so three of
the names are one. Sampling has no class: it is the backends' own, by ``SamplingParams``.
"""

from __future__ import annotations

from zse.engine.core import EngineCore as InferenceEngine
from zse.engine.llm import LLM
from zse.engine.output import Delta as StreamChunk
from zse.engine.request import SamplingParams
from zse.text.stop import StopChecker

BatchGenerator = CachedTextGenerator = TextGenerator = LLM

__all__ = [
    "BatchGenerator",
    "CachedTextGenerator",
    "InferenceEngine",
    "SamplingParams",
    "StopChecker",
    "StreamChunk",
    "TextGenerator",
]
