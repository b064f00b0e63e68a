"""Two ranks on GPUs of Triton's interpreter, each a process: the answers are those of one GPU."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from forked_ranks import run_ranks
from interpreted_runner import open_runner
from logits import as_tensor
from model_pairs import make_pair
from rank_mesh import Mesh, Wires

from zse.backends.gpu import collectives
from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.runner import ModelRunner

__all__ = ["make_pair"]
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
}
WIDE_HEADS = {"num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 256}
EXPERTS = {"moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2}
PROMPT = [5, 17, 70, 33]


def answers(runner: ModelRunner) -> dict[str, Any]:
    """Return logits of a prompt, and the likeliest tokens behind it: a captured step, too."""
    logits = as_tensor(runner.logits(PROMPT))
    tokens, start, found = PROMPT, 0, []
    for step in range(3):
        sampling = [[SamplingRow(temperature=0.0, step=step)]]
        chunk = SequenceChunk(0, tokens, start, (2, 5), kind_of(len(tokens)))
        [[sampled]] = runner.execute(StepBatch(chunks=[chunk], sampling=sampling))
        found.append(sampled.token_id)
        start, tokens = start + len(tokens), [PENDING_TOKEN]
    return {"logits": logits.tolist(), "tokens": found}


def answers_of_ranks(path: Path, folder: Path, ranks: int, **options: Any) -> list[dict[str, Any]]:
    patient = partial(collectives.Collectives, patience_seconds=1e6)

    def work(rank: int, wires: Wires) -> None:
        collectives.Collectives = patient  # type: ignore[assignment, misc] - in this process alone
        link = Mesh(rank, wires.memory, wires.sockets[rank])
        with closing(open_runner(path, link=link, **options)) as runner:
            (folder / f"{rank}.json").write_text(json.dumps(answers(runner)))

    with closing(Wires(ranks)) as wires:
        run_ranks([partial(work, rank, wires) for rank in range(ranks)])
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("family", "scheme", "shape", "options"),
    [
        ("qwen2", "int8", {}, {}),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("gemma2", "int4", WIDE_HEADS, {}),  # one KV head for both ranks
                ("granite", "bf16", {}, {"exact_activations": True}),
                ("qwen3_moe", "bf16", EXPERTS, {}),
            )
        ),
    ],
)
def test_ranks_answer_as_one_gpu_does_and_each_alike(
    make_pair: Callable[..., Any],
    tmp_path: Path,
    family: str,
    scheme: str,
    shape: dict[str, int],
    options: dict[str, Any],
) -> None:
    path = make_pair(family, scheme, **{**SHAPE, **shape}).path
    with closing(open_runner(path, **options)) as runner:
        alone = answers(runner)
    first, *others = answers_of_ranks(path, tmp_path, 2, **options)
    expected, found = torch.tensor(alone["logits"]), torch.tensor(first["logits"])
    assert float((found - expected).norm() / expected.norm()) < 2e-2
    assert first["tokens"] == alone["tokens"]
    assert others == [first]
