"""Where all matrices are kept turned, rows that are computed alone are multiplied with them."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from family_shapes import shape_of
from interpreted_runner import open_runner
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.turned_rows import turns_matrices
from zse.backends.types import SampledToken, SequenceChunk, StepBatch
from zse.device.facts_of_gpus import H200
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.families import read_checkpoint
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
}
TURNED, STORED = ("read turned weights", "read stored weights")


def spec_of(family: str, **changes: Any) -> ModelSpec:
    config = CONFIG_CLASSES[family](**shape_of(family, **changes))
    return read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES[family]]})


def test_rows_alone_are_turned_where_they_go_one_way_in_all_steps() -> None:
    plain = spec_of("qwen2")
    assert turns_matrices(plain, load_options(deterministic=True))
    assert turns_matrices(plain, load_options(deterministic=True, prefill_precision="8"))
    others: list[dict[str, Any]] = [
        {"prefill_precision": "16"},
        {"exact_activations": True},
        {"lora_gib": 1},
    ]
    for each in others:
        assert not turns_matrices(plain, load_options(deterministic=True, **each)), each
    mixture = spec_of("qwen3_moe")
    assert turns_matrices(mixture, load_options())
    assert not turns_matrices(mixture, load_options(deterministic=True))


def test_forms_that_decide_over_bits_are_those_of_one_number_of_rows() -> None:
    matrix = LinearWeight(scheme="int4", group_size=128, rows=3584, columns=18944, weights=1)
    plans = StepPlans(
        spec_of("qwen2"), {"layers.0.down": matrix}, H200, load_options(deterministic=True)
    )

    def roundings() -> set[str]:
        return {plans.rounding(shape) for shape in shapes}

    shapes = [
        InputShape(decode_rows=rows, sequences=rows, table_stride=1, wanted=1)
        for rows in (1, 64, 65, 128, 256, 257, 5000)
    ]
    assert roundings() == {"groups"}
    before = plans.scratch(shapes[-1])
    plans.keep_turned(True)
    assert plans.turns_all
    assert roundings() == {"tokens"}
    assert len({plans.turned_splits(matrix, shape.rows) for shape in shapes}) == 1
    assert plans.turned_splits(matrix, 1) > 1
    assert plans.scratch(shapes[-1]).weights > before.weights
    assert not plans.widens(5000)


def chunk(tokens: list[int], start: int, slot: int, kind: Any = "prefill") -> SequenceChunk:
    return SequenceChunk(slot, tokens, start, (slot,), kind)


def step(
    runner: ModelRunner, *chunks: SequenceChunk, wants_hidden: bool = False
) -> list[list[SampledToken]]:
    row = SamplingRow(temperature=0.0, logprobs=3, wants_hidden=wants_hidden)
    return [
        list(told)
        for told in runner.execute(StepBatch(chunks=list(chunks), sampling=[[row]] * len(chunks)))
    ]


def answer(runner: ModelRunner, *, is_alone: bool = False) -> list[list[SampledToken]]:
    """Two prompts in one step, of which one goes on with a token in pieces of its own."""
    first, other = (
        chunk(tokens, 0, slot)._replace(is_alone=is_alone)
        for slot, tokens in enumerate(([5, 17, 70, 33], [9, 8]))
    )
    found = step(runner, first, other)
    last = chunk([found[0][0].token_id], 4, 0, "decode")._replace(is_alone=is_alone)
    return found + step(runner, last)


def pieces(runner: ModelRunner) -> list[list[SampledToken]]:
    """What ``answer`` finds of the first prompt, a token at a time."""
    tokens = enumerate([5, 17, 70, 33])
    return [step(runner, chunk([token], place, 1, "decode"))[0] for place, token in tokens][-1:]


@pytest.fixture
def path(make_pair: Callable[..., Any]) -> Path:
    found: Path = make_pair("qwen2", "int4", **SHAPE).path
    return found


def test_rows_alone_have_the_bits_of_turned_weights_in_all_steps_until_the_end(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zse.backends.gpu.plans.BATCH_ROWS", 2)
    caplog.set_level(logging.INFO, "zse.backends.gpu")
    found = {}
    for precision, said in (("auto", TURNED), ("16", STORED)):
        caplog.clear()
        with closing(open_runner(path, deterministic=True, prefill_precision=precision)) as runner:
            assert said in caplog.text
            assert runner.device.weights_alone in said
            assert ("prompt_weights" in runner.memory_bytes()) == (said == TURNED)
            found[said] = answer(runner)
            assert pieces(runner) == found[said][:1]
            assert not runner._backend._give_up()
            assert answer(runner) == found[said]
    assert found[TURNED] != found[STORED]
    caplog.clear()
    with closing(open_runner(path)) as runner:
        assert TURNED not in caplog.text
        assert answer(runner, is_alone=True) == found[TURNED]
        assert TURNED in caplog.text
        assert not runner._backend._give_up()
        assert answer(runner, is_alone=True) == found[TURNED]


def test_rows_alone_read_stored_weights_where_turned_ones_were_given_back_before(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zse.backends.gpu")
    with closing(open_runner(path)) as runner:
        runner._backend._model.give_up_turned()
        stored = answer(runner, is_alone=True)
        assert STORED in caplog.text
    with closing(open_runner(path, deterministic=True, prefill_weights="make")) as runner:
        assert answer(runner) == stored


def test_who_is_told_a_state_gets_16_bits_of_it_and_the_token_of_others(path: Path) -> None:
    prompt = chunk([5, 17, 70, 33], 0, 0)
    found = {}
    for exact in (False, True):
        with closing(open_runner(path, deterministic=True, exact_activations=exact)) as runner:
            ((plain,),) = step(runner, prompt)
            ((told,),) = step(runner, prompt, wants_hidden=True)
            assert told.hidden is not None
            assert told._replace(hidden=None) == plain
            found[exact] = torch.tensor(told.hidden)
    assert 0 < (found[False] - found[True]).norm() <= 5e-2 * found[True].norm()
