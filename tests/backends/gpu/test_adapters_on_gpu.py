"""Adapters on a GPU: what they add in torch, many in one batch, come and gone without a leak."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor
from random_adapters import write_adapter

from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.format import ZSEReader
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
"""Matrices that lie otherwise: beside experts, turned in the checkpoint, of linear attention."""
TOLERANCE = 6e-2
WIDE = {"gemma4": 0.25, "qwen3_5": 0.15}
NAMES = (None, "one", "two", "three")
PROMPT = [3 + (7 * place) % 900 for place in range(300)]


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


@pytest.fixture
def llm(case: SimpleNamespace) -> Iterator[LLM]:
    with LLM(
        case.path, device="cuda", num_blocks=256, max_sequences=16, loras=case.folders,
        exact_activations=True, prefix_cache=False,
    ) as made:  # fmt: skip
        yield made


def answers(llm: LLM, names: list[str | None]) -> list[list[tuple[int, float]]]:
    """Return the greedy answers to a prompt, with log-probabilities, computed together."""
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=0)
    streams = [llm._open(PROMPT[:40], params, None, name) for name in names]
    for stream in streams:
        while not stream.text.is_finished:
            llm._step(stream)
    found = [[t for delta in stream.deltas for t in delta.token_ids] for stream in streams]
    for stream in streams:
        llm._forget(stream)
    return found


def test_four_kinds_of_answer_in_one_batch_are_what_each_is_alone(llm: LLM) -> None:
    alone = {name: answers(llm, [name])[0] for name in NAMES}
    assert len({tuple(one) for one in alone.values()}) == len(NAMES)
    together = answers(llm, [*NAMES, *NAMES])
    # A step of more rows may round otherwise, and a random model's likeliest tokens are near.
    same = sum(found == alone[name] for name, found in zip([*NAMES, *NAMES], together, strict=True))
    assert [one[0] for one in together] == [alone[name][0] for name in (*NAMES, *NAMES)]
    assert same >= 6


def test_an_adapter_that_comes_and_goes_fifty_times_leaves_no_memory_behind(
    llm: LLM, case: SimpleNamespace
) -> None:
    expected = answers(llm, ["one"])[0]
    llm.adapters.remove("one")
    gc.collect()
    backend = llm._model.core.runner._backend
    ranges = backend._model.adapters._ranges
    free, device_free = ranges.num_free, backend._gpu.memory()[0]
    for _ in range(50):
        llm.adapters.load("again", case.folders["one"])
        assert answers(llm, ["again"])[0][:4] == expected[:4]
        llm.adapters.remove("again")
        answers(llm, [None])  # the step before it is let go of
        gc.collect()
        assert ranges.num_free == free
    assert backend._gpu.memory()[0] >= device_free - (4 << 20)
