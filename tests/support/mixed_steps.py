"""Steps of prompts beside answers for a small model on a GPU, the same each time."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.runner import ModelRunner

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "vocab_size": 320,
    "max_position": 1024,
    "num_layers": 8,
}
BLOCKS_EACH, SLOTS = 32, 12
ROW = SamplingRow(temperature=0.0, logprobs=4)


def open_runner(path: Path, **changes: Any) -> ModelRunner:
    """Open a model on a GPU with room for the steps."""
    options = load_options(
        device="cuda",
        kernels=load_settings().serve.load.device.kernels,
        max_sequences=SLOTS,
        max_batch_tokens=1024,
        num_blocks=SLOTS * BLOCKS_EACH,
        **changes,
    )
    return load_runner(path, options)


def steps() -> list[StepBatch]:
    """Prompts that come one after the other, of lengths that differ, beside answers."""
    draw, found = random.Random(5), []
    ends: dict[int, int] = {}
    for number in range(40):
        chunks = []
        for slot, end in ends.items():
            chunks.append(chunk_of(slot, [draw.randrange(320)], end))
            ends[slot] += 1
        count = draw.randint(*draw.choice([(2, 60), (130, 200), (300, 500)]))
        chunks.append(chunk_of(number % SLOTS, draw.choices(range(320), k=count), 0))
        chunks = list({chunk.sequence_slot: chunk for chunk in chunks}.values())
        ends[number % SLOTS] = count
        found.append(StepBatch(chunks=chunks, sampling=[[ROW] for _ in chunks]))
    return found


def chunk_of(slot: int, tokens: list[int], start: int) -> SequenceChunk:
    """Return some tokens of the sequence that has a slot."""
    blocks = list(range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH))
    return SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)))
