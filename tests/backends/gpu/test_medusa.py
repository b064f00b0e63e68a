"""Heads of Medusa on the GPU backend, in the interpreter: the guesses of torch."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_answers import told_answers
from interpreted_runner import open_runner
from medusa_folders import head_tensors, write_checkpoint, write_heads
from tiny_shape import TINY

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.core import EngineCore
from zse.engine.drafting.medusa_drafter import MedusaDrafter
from zse.engine.drafting.opening import collector_of, memory_of_medusa
from zse.engine.drafting.speculator import Speculator
from zse.engine.request import Request, SamplingParams
from zse.errors import EngineError
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.medusa import forward_of_head, model_of, stored_heads
from zse.models.runner import load_runner, spec_of
from zse.options import load_options
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

    from zse.engine.stats import SpeculationCounts
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec

SIZES: dict[str, Any] = {"num_blocks": 8, "max_batch_tokens": 16, "deterministic": True}
PROMPT = [5, 17, 70, 33]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer with two heads of two blocks."""
    folder = tmp_path_factory.mktemp("medusa")
    checkpoint = write_checkpoint(folder / "checkpoint", **TINY | {"num_hidden_layers": 1})
    heads = write_heads(folder / "heads", head_tensors(checkpoint, 2, 2))
    convert_model(checkpoint, folder / "model.zse", "int8", allow_no_tokenizer=True, medusa=heads)
    return folder / "model.zse"


def heads_of(path: Path) -> ModelSpec:
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
        return model_of(spec, stored_heads(reader.header, spec))


def guesses(runner: ModelRunner, spec: ModelSpec) -> list[int]:
    """Return what each head guesses of some states."""
    states = torch.randn(2, spec.hidden_size, generator=torch.Generator().manual_seed(1))
    chunks = [
        SequenceChunk(slot, [7], 0, (0,), "decode", joined=memoryview(state.numpy()).cast("B"))
        for slot, state in enumerate(states)
    ]
    batch = StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)]] * 2)
    passes = [forward_of_head(spec, index) for index in range(len(spec.medusa))]
    return [answer[0].token_id for one in passes for answer in runner.guess(batch, one)]


def test_heads_guess_what_torch_guesses(path: Path) -> None:
    spec = heads_of(path)
    options = load_options(device="torch", threads=1, num_blocks=1)
    with ZSEReader(path) as reader:
        with closing(load_runner(reader, options, spec=spec)) as reference:
            expected = guesses(reference, spec)
        with closing(open_runner(path, exact_activations=True)) as runner:
            runner.bind_heads(reader, spec.medusa)
            assert guesses(runner, spec) == expected
            batch = StepBatch(
                chunks=[SequenceChunk(0, [7], 0, (0,), "decode", joined=memoryview(b"1234"))],
                sampling=[[SamplingRow(temperature=0.0)]],
            )
            with pytest.raises(EngineError, match="4 bytes of states; 512 are needed"):
                runner.guess(batch, forward_of_head(spec, 0))
            runner.release_heads()


def test_heads_change_no_answer_where_steps_are_sent_ahead(path: Path) -> None:
    spec = heads_of(path)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)

    def answered(speculate: str) -> tuple[object, SpeculationCounts]:
        request = Request(request_id="a", prompt_token_ids=PROMPT, params=params)
        runner = open_runner(path, **SIZES, speculate=speculate)
        options = load_options(**SIZES, max_sequences=2, speculate=speculate)
        begin = collect = None
        if speculate == "medusa":
            with ZSEReader(path) as reader:
                runner.bind_heads(reader, spec.medusa)
            drafter = MedusaDrafter(runner, spec, runner.release_heads)
            speculator = Speculator(drafter, itertools.count().__next__)
            begin, collect = lambda: speculator, collector_of(spec.hidden_size)
        with closing(
            EngineCore(runner, options, begin_speculation=begin, collect_states=collect)
        ) as core:
            return told_answers(core, [request]), core.stats().speculation

    expected, _ = answered("off")
    found, counts = answered("medusa")
    assert found == expected
    assert counts.draft_tokens > 0


def test_a_model_leaves_its_heads_their_memory(path: Path) -> None:
    with ZSEReader(path) as reader:
        sizes = [group.length_bytes for group in reader.header.groups if group.is_spare]
        assert memory_of_medusa(reader, spec_of(reader)) == sum(sizes)
