"""One rank of a model on real GPUs, started by ``rank_mesh.run``: prints what it answers as JSON.

Arguments: a ``.zse`` file, a kernel pack, and options as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rank_mesh import Mesh

from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner, spec_of
from zse.models.share import part_of
from zse.options import load_options

if TYPE_CHECKING:
    from zse.models.runner import ModelRunner

LENGTHS = (3, 33, 400)
"""Tokens of prompts: the last one's matrices are widened, and its sums sent as bfloat16."""
STEPS, BLOCKS = 24, 16


def prompt(length: int) -> list[int]:
    return [(7 * index * index + 3) % 997 for index in range(length)]


def open_runner(path: Path, pack: str, link: Mesh | None = None, **options: object) -> ModelRunner:
    """Return the runner of a file on the GPU of a rank, or on the first one.

    Ranks share GPUs in turns where those are fewer.
    """
    given = {"num_blocks": 64, "max_sequences": 4, "prefill_precision": "16", "kernels": pack}
    ordinal = 0 if link is None else link.share.rank % count_devices(Driver())
    opened = load_options(**{**given, "device": f"cuda:{ordinal}", **options})
    if link is None:
        return load_runner(path, opened)
    with ZSEReader(path) as reader:
        part = part_of(spec_of(reader), reader.header.loaded(), link)
    return load_runner(path, opened, part=part)


def answers(runner: ModelRunner) -> dict[str, Any]:
    """Return logits behind prompts, and the likeliest tokens of three texts that run at once."""
    logits = [list(runner.logits(prompt(length))[-1]) for length in LENGTHS]
    tokens: list[list[int]] = [[] for _ in LENGTHS]
    starts = list(LENGTHS)
    for slot, length in enumerate(LENGTHS):
        tokens[slot] += _step(runner, [_chunk(slot, prompt(length), 0)], 0)
    for step in range(1, STEPS):
        chunks = [_chunk(slot, [PENDING_TOKEN], start) for slot, start in enumerate(starts)]
        for slot, token in enumerate(_step(runner, chunks, step)):
            tokens[slot].append(token)
            starts[slot] += 1
    return {"logits": logits, "tokens": tokens}


def _chunk(slot: int, tokens: list[int], start: int) -> SequenceChunk:
    blocks = range(slot * BLOCKS, (slot + 1) * BLOCKS)
    return SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)))


def _step(runner: ModelRunner, chunks: list[SequenceChunk], step: int) -> list[int]:
    sampling = [[SamplingRow(temperature=0.0, step=step)] for _ in chunks]
    answered = runner.execute(StepBatch(chunks=chunks, sampling=sampling))
    return [token.token_id for [token] in answered]


def main() -> None:
    path, pack, options = sys.argv[1:]
    link = Mesh.of_environment()
    runner = open_runner(Path(path), pack, link, **json.loads(options))
    found = answers(runner)
    link.barrier()
    runner.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
