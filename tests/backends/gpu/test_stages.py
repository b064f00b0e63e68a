"""Stages on GPUs of Triton's interpreter, each a process: bit for bit what one GPU computes."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from forked_ranks import run_ranks
from interpreted_runner import open_runner
from logits import as_tensor
from model_pairs import make_pair
from rank_mesh import Mesh, Wires
from tiny_shape import TINY

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.engine.ranks.shared import SharedMemory
from zse.engine.ranks.stages import Places, place_part
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.runner import ModelRunner

__all__ = ["make_pair"]
PROMPT = [5, 17, 70, 33]
WIDE_HEADS = {"head_dim": 256, "max_position_embeddings": 256}
STEPS = [PROMPT, [9], [3]]
DRAWN = SamplingRow(temperature=0.8, seed=4, presence_penalty=0.4, output_token_ids=(9,))


def answers(runner: ModelRunner) -> dict[str, Any]:
    """Return logits of a prompt, and what follows it: eager steps and captured ones."""
    logits = [list(row) for row in runner.logits(PROMPT)]
    start, found = 0, []
    for tokens, row in zip(STEPS, (SamplingRow(temperature=0.0), DRAWN, DRAWN), strict=True):
        chunk = SequenceChunk(0, tokens, start, (2, 5), kind_of(len(tokens)))
        answer = runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))
        found.append([token.token_id for token in answer[0]])
        start += len(tokens)
    return {"logits": logits, "tokens": found}


class StagedMesh(Mesh):
    """Ranks with the pages that the engine's ranks share."""

    def __init__(self, rank: int, wires: Wires, memory: int) -> None:
        super().__init__(rank, wires.memory, wires.sockets[rank])
        self.shared = SharedMemory(memory)


def answers_of_stages(path: Path, folder: Path, ends: tuple[int, ...]) -> list[dict[str, Any]]:
    places = Places(num_ranks=1, ends=ends)

    def work(rank: int, wires: Wires, memory: int) -> None:
        link = StagedMesh(rank, wires, memory)
        with ZSEReader(path) as reader:
            part = place_part(spec_of(reader), reader.header.loaded(), link, places)
        with closing(open_runner(path, part=part)) as runner:
            (folder / f"{rank}.json").write_text(json.dumps(answers(runner)))

    shared = SharedMemory()
    with closing(Wires(len(ends))) as wires:
        run_ranks([partial(work, rank, wires, shared.fd) for rank in range(len(ends))])
    shared.close()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(ends))]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "scheme", "shape"), [("qwen2", "int8", {}), ("gemma2", "int4", WIDE_HEADS)]
)
def test_stages_answer_as_one_gpu_does(
    make_pair: Callable[..., Any], tmp_path: Path, family: str, scheme: str, shape: dict[str, int]
) -> None:
    path = make_pair(family, scheme, **{**TINY, **shape}).path
    with closing(open_runner(path)) as runner:
        alone = answers(runner)
        assert len(as_tensor(runner.logits(PROMPT))) == len(PROMPT)
    last, first = answers_of_stages(path, tmp_path, (1, 2))
    assert last == alone
    assert first == {"logits": [], "tokens": [[], [], []]}
