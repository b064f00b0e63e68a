"""Drafts by Medusa's heads: what they guess, and that no answer depends on it."""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_answers import requests_with_one_beginning, told_answers
from medusa_folders import head_tensors, write_checkpoint, write_heads

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.core import EngineCore
from zse.engine.drafting.checks import check_own_guesses
from zse.engine.drafting.choosing import speculation_of
from zse.engine.drafting.opening import collector_of, drafter_of_medusa
from zse.engine.drafting.speculator import Speculator
from zse.errors import FormatError, UsageError
from zse.format.reader import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.medusa import forward_of_head, model_of, stored_heads
from zse.models.runner import load_runner, spec_of
from zse.options import load_options
from zse.quantize.convert import convert_model
from zse.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from zse.engine.stats import EngineStats

SIZES: dict[str, Any] = {
    "num_blocks": 40, "block_size": 4, "max_sequences": 3, "max_batch_tokens": 24, "threads": 1
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"logprobs": 2},
    "sampled": {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "seed": 5, "n": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("medusa") / "checkpoint")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    """A file with three heads of two blocks."""
    heads = write_heads(folder.parent / "heads", head_tensors(folder, 3, 2))
    out = folder.parent / "model.zse"
    convert_model(folder, out, "bf16", allow_no_tokenizer=True, medusa=heads)
    return out


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_each_head_chooses_by_its_blocks_and_its_matrix(
    folder: Path, path: Path, device: str
) -> None:
    tensors = {name: one.bfloat16().float() for name, one in head_tensors(folder, 3, 2).items()}
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
        spec = model_of(spec, stored_heads(reader.header, spec))
        options = load_options(device=device, threads=1, num_blocks=1, exact_activations=True)
        runner = load_runner(reader, options, spec=spec)
        states = torch.randn(5, spec.hidden_size, generator=torch.Generator().manual_seed(1))
        row = SamplingRow(temperature=0.0, logprobs=3)
        chunks = [
            SequenceChunk(slot, [7], 0, (0,), "decode", joined=memoryview(state.numpy()).cast("B"))
            for slot, state in enumerate(states)
        ]
        for index in range(3):
            batch = StepBatch(chunks=chunks, sampling=[[row]] * 5)
            answers = runner.guess(batch, forward_of_head(spec, index))
            stream = states
            for block in range(2):
                name = f"{index}.{block}.linear"
                weight, bias = tensors[f"{name}.weight"], head_tensors(folder, 3, 2)[f"{name}.bias"]
                stream = stream + torch.nn.functional.silu(stream @ weight.T + bias)
            expected = torch.log_softmax(stream @ tensors[f"{index}.2.weight"].T, 1)
            for (found,), logprobs in zip(answers, expected, strict=True):
                assert found.token_id == int(logprobs.argmax())
                assert found.logprob == pytest.approx(float(logprobs.max()), abs=1e-3)
        runner.close()


def stats_of_equal(path: Path, way: str, **sizes: Any) -> EngineStats:
    """Answer with heads and without, and hold one against the other."""
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}

    def requests() -> list[Any]:
        return requests_with_one_beginning(**params | WAYS[way])

    options = load_options(**SIZES | sizes, speculate="medusa")
    with ZSEReader(path) as reader:
        with closing(EngineCore(load_runner(reader, options), options)) as plain:
            without = told_answers(plain, requests())
        runner = load_runner(reader, options)
        drafter = drafter_of_medusa(runner, reader, options, load_settings())
        core = EngineCore(
            runner,
            options,
            begin_speculation=lambda: Speculator(drafter, itertools.count().__next__),
            collect_states=collector_of(runner.spec.hidden_size),
        )
        with closing(core):
            assert told_answers(core, requests()) == without
            return core.stats()


@pytest.mark.parametrize(
    ("way", "device"), [("greedy", "torch"), ("greedy", "cpu"), ("sampled", "cpu")]
)
def test_heads_change_no_answer(path: Path, way: str, device: str) -> None:
    assert stats_of_equal(path, way, device=device).speculation.draft_tokens > 0


def test_heads_go_on_behind_preemptions_and_prompts_in_pieces(path: Path) -> None:
    stats = stats_of_equal(path, "greedy", device="cpu", num_blocks=22, max_batch_tokens=9)
    assert stats.preemptions > 0
    assert stats.speculation.draft_tokens > 0


def test_the_option_opens_the_heads_of_a_file(path: Path) -> None:
    options = load_options(device="cpu", **SIZES, speculate="medusa")
    with ZSEReader(path) as reader:
        runner = load_runner(reader, options)
        speculation = speculation_of(runner, reader, options, load_settings())
        assert speculation is not None
        assert speculation.collect_states is not None
        speculation.begin().close()
        runner.close()


def test_a_file_without_heads_and_heads_of_another_shape_are_refused(
    path: Path, random_zse: Path
) -> None:
    medusa = load_options(device="cpu", speculate="medusa")
    with ZSEReader(random_zse) as reader:
        spec = spec_of(reader)
        with pytest.raises(UsageError, match="no heads of Medusa") as caught:
            check_own_guesses(reader.header, spec, medusa)
        assert "--medusa" in caught.value.hint
    with ZSEReader(path) as reader:
        check_own_guesses(reader.header, spec_of(reader), medusa)
        with pytest.raises(FormatError, match=r"medusa\.0\."):
            check_own_guesses(reader.header, spec, medusa)
