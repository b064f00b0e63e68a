"""Stages of CPUs: bit for bit the tokens of one process, whatever the model."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from family_shapes import ENCODERS, shape_of
from joined_ranks import JoinedRunners, joined_stages
from logits import as_tensor
from model_pairs import make_pair
from random_steps import random_steps

from zse.engine.ranks.opening import stage_ends
from zse.engine.ranks.stages import Places
from zse.errors import UnsupportedModelError, UsageError
from zse.format import ZSEReader
from zse.models.families import all_families
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.backends.types import Answers, StepBatch
    from zse.models.runner import ModelRunner

__all__ = ["make_pair"]
POOL: dict[str, Any] = {
    "device": "cpu",
    "num_blocks": 64,
    "block_size": 8,
    "max_sequences": 4,
    "threads": 1,
    "prefix_cache": False,
    "max_context": 120,
}
TEXT = [(7 * index * index + 3) % 320 for index in range(45)]
FAMILIES = ("deepseek_v3", "gemma3", "gpt_oss", "qwen2", "qwen3_next")
"""Latents, windows, sinks, biases, states; nightly all the others."""
OTHERS = sorted(set(all_families()) - ENCODERS - {"gemma4"} - set(FAMILIES))


def twice(family: str) -> dict[str, Any]:
    """Return a family's tiny shape with every kind of layer twice."""
    shape = shape_of(family)
    count = shape["num_hidden_layers"]
    lists = {key: 2 * one for key, one in shape.items() if isinstance(one, list | tuple)}
    of_layers = {key: one for key, one in lists.items() if len(one) == 2 * count}
    return {"num_hidden_layers": 2 * count, **of_layers}


def ends_of(path: Path, stages: int) -> tuple[int, ...]:
    with ZSEReader(path) as reader:
        options = load_options(**POOL, pipeline_parallel=stages)
        return stage_ends(spec_of(reader), reader.header.loaded(), options, ["cpu"] * stages)


def steps(vocab: int) -> list[StepBatch]:
    return list(random_steps(random.Random(4), vocab))


def computed(joined: JoinedRunners, batches: list[StepBatch]) -> list[Answers]:
    """Return what the last stage answers to steps that all are given."""

    def work(runner: ModelRunner) -> list[Answers]:
        pending = [runner.submit(batch) for batch in batches]
        return [each.wait() for each in pending]

    return joined.each(work)[0]


@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(one, marks=pytest.mark.nightly) for one in OTHERS)]
)
def test_stages_choose_the_tokens_of_one_process(
    family: str, make_pair: Callable[..., Any]
) -> None:
    path = make_pair(family, "int8", **twice(family)).path
    with closing(load_runner(path, load_options(**POOL))) as runner:
        batches = steps(runner.vocab_size)
        expected = [runner.execute(batch) for batch in batches]
        logits = as_tensor(runner.logits(TEXT))
    places = Places(num_ranks=1, ends=ends_of(path, 2))
    with joined_stages(path, places, **POOL) as joined:
        assert computed(joined, batches) == expected
        assert as_tensor(joined.each(lambda one: one.logits(TEXT))[0]).equal(logits)


def test_stages_of_several_ranks_choose_the_tokens_of_the_same_ranks_without_stages(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("qwen2", "int8", **twice("qwen2")).path
    ends = ends_of(path, 2)
    found = []
    for places in (Places(num_ranks=2, ends=(4,)), Places(num_ranks=2, ends=ends)):
        with joined_stages(path, places, **POOL) as joined:
            found.append(computed(joined, steps(joined.runners[0].vocab_size)))
    assert found[0] == found[1]


def test_a_prompt_of_more_rows_than_a_way_has_slots_for_goes_through(
    make_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.backends.cpu.flow.ROWS_AT_ONCE", 4)
    path = make_pair("qwen2", "int8", **twice("qwen2")).path
    with closing(load_runner(path, load_options(**POOL))) as runner:
        logits = as_tensor(runner.logits(TEXT))
    with joined_stages(path, Places(num_ranks=1, ends=ends_of(path, 2)), **POOL) as joined:
        assert as_tensor(joined.each(lambda one: one.logits(TEXT))[0]).equal(logits)


def test_a_model_whose_layers_are_told_more_than_the_stream_has_no_stages(
    make_pair: Callable[..., Any],
) -> None:
    with pytest.raises(UnsupportedModelError, match="embeddings for each layer"):
        ends_of(make_pair("gemma4", "fp32").path, 2)


def test_more_stages_than_the_layers_have_kinds_for_are_refused(
    make_pair: Callable[..., Any],
) -> None:
    path = make_pair("qwen3_next", "int8").path
    with pytest.raises(UsageError, match="cannot be shared out among 3 stages"):
        ends_of(path, 3)


@pytest.mark.parametrize(
    ("ranks", "ends", "rank", "stage", "layers"),
    [
        (1, (4, 9), 0, 1, (4, 9)),
        (1, (4, 9), 1, 0, (0, 4)),
        (2, (3, 6, 8), 0, 2, (6, 8)),
        (2, (3, 6, 8), 1, 2, (6, 8)),
        (2, (3, 6, 8), 5, 0, (0, 3)),
    ],
)
def test_rank_0_has_the_last_stage_and_the_last_rank_the_first(
    ranks: int, ends: tuple[int, ...], rank: int, stage: int, layers: tuple[int, int]
) -> None:
    places = Places(num_ranks=ranks, ends=ends)
    assert places.stage_of(rank) == stage
    assert places.layers_of(stage) == layers
