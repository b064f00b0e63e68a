"""Steps as a scheduler plans them, of random sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.types import SequenceChunk, StepBatch
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator


def random_steps(rng: random.Random, vocab: int) -> Iterator[StepBatch]:
    """Prompts in pieces, beside tokens of sequences that go on: what a scheduler plans."""
    lengths = [0, 0, 0]
    tables = [list(range(16 * slot, 16 * slot + 16)) for slot in range(3)]
    for _ in range(12):
        chunks, sampling = [], []
        for slot in rng.sample(range(3), rng.randint(1, 3)):
            count = 1 if lengths[slot] and rng.random() < 0.6 else rng.randint(1, 9)
            tokens = [rng.randrange(vocab) for _ in range(count)]
            kind = "decode" if count == 1 else "prefill"
            chunks.append(SequenceChunk(slot, tokens, lengths[slot], tables[slot], kind))
            temperature = rng.choice([0.0, 1.0])
            row = SamplingRow(temperature=temperature, seed=slot, step=lengths[slot], logprobs=2)
            sampling.append([row] if rng.random() < 0.8 else [])
            lengths[slot] += count
        yield StepBatch(chunks=chunks, sampling=sampling)
