"""Adapters on a GPU: what they add in torch, many in one batch, come and gone without a leak."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor
from random_adapters import write_adapter

from zse.backends.types import SampledToken, SequenceChunk, StepBatch, kind_of
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.runner import ModelRunner, load_runner, spec_of
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.gpu
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 2,
}
CHANGES: dict[str, dict[str, Any]] = {
    "gemma4": {
        "head_dim": 256,
        "global_head_dim": 512,
        "moe_intermediate_size": 128,
        "hidden_size_per_layer_input": 128,
        "vocab_size_per_layer_input": 1000,
        "num_hidden_layers": 6,
    },
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 128, "num_experts_per_tok": 2},
    "gpt2": {"n_embd": 256, "n_inner": 512, "n_head": 4, "n_positions": 1024},
    "qwen3_5": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "head_dim": 256,
        "num_hidden_layers": 3,
    },
}
"""Matrices that lie otherwise: beside experts, of experts, turned in the checkpoint, of linear
attention."""
TOLERANCE = 6e-2
WIDE = {"gemma4": 0.25, "qwen3_5": 0.15, "qwen3_moe": 0.15}
PROMPT = [3 + (7 * place) % 900 for place in range(300)]
GIVEN = tuple(enumerate(PROMPT[100:112]))


@pytest.fixture(params=["llama"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def case(family: str, make_pair: Callable[..., Any], tmp_path: Path) -> SimpleNamespace:
    """A model's file, and three adapters of different ranks, types and modules."""
    path = make_pair(family, "int4", **{**SHAPE, **CHANGES.get(family, {})}).path
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
    few = ["q_proj", "down_proj", "mlp.c_proj", "qkv_proj"]
    made = {
        "one": write_adapter(tmp_path / "one", spec, size=0.1, rank=8, dtype=torch.float16),
        "two": write_adapter(tmp_path / "two", spec, size=0.1, seed=2, rank=9, modules=few),
        "three": write_adapter(
            tmp_path / "three", spec, size=0.05, seed=3, rank=64, dtype=torch.bfloat16
        ),
    }
    return SimpleNamespace(path=path, spec=spec, folders=made)


@pytest.fixture
def runners(case: SimpleNamespace) -> Iterator[tuple[ModelRunner, ModelRunner]]:
    kernels = load_settings().serve.load.device.kernels
    options = load_options(
        device="cuda", num_blocks=64, max_sequences=8, kernels=kernels, lora_gib=0.25,
        prefill_precision="16",
    )  # fmt: skip
    gpu = load_runner(case.path, options, cache_dir=load_settings().cache_dir)
    reference = load_runner(case.path, load_options(device="torch", num_blocks=64))
    yield gpu, reference
    gpu.close()
    reference.close()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3", *CHANGES], indirect=True)
@pytest.mark.parametrize(("length", "chunk"), [(300, 512), (300, 70), (24, 1)])
def test_rows_of_logits_are_those_of_torch(
    runners: tuple[ModelRunner, ModelRunner],
    case: SimpleNamespace,
    family: str,
    length: int,
    chunk: int,
) -> None:
    tolerance = WIDE.get(family, TOLERANCE)
    plain = as_tensor(runners[1].logits(PROMPT[:length]))
    for folder in case.folders.values():
        found, expected = (
            as_tensor(runner.logits(PROMPT[:length], adapter=bound(runner, folder), **how))
            for runner, how in zip(runners, ({"chunk_tokens": chunk}, {}), strict=True)
        )
        errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
        changes = (plain - expected).norm(dim=1) / expected.norm(dim=1)
        assert float(errors.median()) < tolerance
        assert float(changes.median()) > 2 * tolerance


def bound(runner: ModelRunner, folder: Path) -> Any:
    places = places_at_run_time(runner.spec)
    return runner.bind_adapter(read_adapter(folder, folder.name, places, max_rank=64))


def steps_of(adapters: list[Any]) -> Iterator[StepBatch]:
    """Yield the steps of one prompt for each adapter, then of tokens that are given."""
    for tokens, position in ((PROMPT[:40], 0), *(([token], 40 + i) for i, token in GIVEN)):
        chunks = [
            SequenceChunk(
                slot, tokens, position, range(2 * slot, 2 * slot + 2), kind_of(len(tokens)),
                adapter=adapter,
            )
            for slot, adapter in enumerate(adapters)
        ]  # fmt: skip
        rows = [[SamplingRow(temperature=0.0, step=position, logprobs=1)] for _ in chunks]
        yield StepBatch(chunks=chunks, sampling=rows)


def answers(runner: ModelRunner, adapters: list[Any]) -> list[list[SampledToken]]:
    """Return the likeliest tokens behind a prompt and behind tokens, for each adapter."""
    found = [runner.execute(step) for step in steps_of(adapters)]
    return [[token for (token,) in tokens] for tokens in zip(*found, strict=True)]


def assert_same(found: list[SampledToken], expected: list[SampledToken]) -> None:
    """Steps of more rows may round otherwise, so the likeliest of two near tokens may be either."""
    same = [one.token_id == other.token_id for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(same) - 2
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=0.15)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"], indirect=True)
def test_four_kinds_of_answer_in_one_batch_are_what_each_is_alone(
    runners: tuple[ModelRunner, ModelRunner], case: SimpleNamespace
) -> None:
    gpu, _ = runners
    kinds = [None, *(bound(gpu, folder) for folder in case.folders.values())]
    alone = [answers(gpu, [kind])[0] for kind in kinds]
    assert len({tuple(token.token_id for token in one) for one in alone}) == len(kinds)
    for found, expected in zip(answers(gpu, kinds * 2), alone * 2, strict=True):
        assert_same(found, expected)
    assert answers(gpu, kinds * 2) == answers(gpu, kinds * 2)


def test_an_adapter_that_comes_and_goes_fifty_times_leaves_no_memory_behind(
    runners: tuple[ModelRunner, ModelRunner], case: SimpleNamespace
) -> None:
    gpu, _ = runners
    backend: Any = gpu._backend
    ranges = backend._model.adapters._ranges
    kept = bound(gpu, case.folders["two"])
    expected = [answers(gpu, [None, bound(gpu, case.folders["one"]), kept]) for _ in range(2)][-1]
    gc.collect()
    free, held, graphs = ranges.num_free, gpu.memory_bytes(), set(backend._graphs)
    for _ in range(50):
        assert answers(gpu, [None, bound(gpu, case.folders["one"]), kept]) == expected
        gc.collect()
        assert ranges.num_free == free
    assert (gpu.memory_bytes(), set(backend._graphs)) == (held, graphs)
