"""Adapters of experts on the GPU backend, in the interpreter: what they add is as in torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from interpreted_runner import open_runner
from logits import as_tensor
from random_adapters import write_adapter

from zse.backends.adapters import AdapterWeights, LowRank, PlainMatrix
from zse.backends.gpu.adapter_image import (
    image_bytes,
    largest_image_bytes,
    matrices_of,
    parts_by_record,
)
from zse.backends.types import SequenceChunk, kind_of
from zse.format import ZSEReader
from zse.format.schemes import Scheme
from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.runner import load_runner, spec_of
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.models.runner import ModelRunner

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
}
TOKENS = [5, 17, 70, 33, 9, 61]
NIGHTLY_BF16, NIGHTLY_128 = (
    pytest.param(value, marks=pytest.mark.nightly) for value in ("bf16", 128)
)
ROOM = {"max_lora_rank": 16, "lora_gib": 0.01}
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")


def logits_of(runner: ModelRunner, folder: Path | None, pieces: int) -> torch.Tensor:
    adapter = None
    if folder is not None:
        places = places_at_run_time(runner.spec)
        adapter = runner.bind_adapter(read_adapter(folder, "a", places, max_rank=16))
    return as_tensor(runner.logits(TOKENS, chunk_tokens=pieces, adapter=adapter))


def check(path: Path, folder: Path, modules: list[str], **options: object) -> None:
    """Compare a step of many rows, and one of a single token after it, with torch."""
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
    write_adapter(folder, spec, rank=9, modules=modules, size=0.3)
    reference = load_runner(path, load_options(device="torch", num_blocks=8))
    expected = logits_of(reference, folder, len(TOKENS))
    plain = logits_of(reference, None, len(TOKENS))
    reference.close()
    runner = open_runner(path, **ROOM, **options)
    found = logits_of(runner, folder, len(TOKENS) - 1)
    runner.close()
    for rows in (slice(None, -1), slice(-1, None)):
        size = expected[rows].norm()
        assert float((found[rows] - expected[rows]).norm() / size) < 3e-2
        assert float((plain[rows] - expected[rows]).norm() / size) > 0.2


@pytest.mark.parametrize("scheme", ["int4", NIGHTLY_BF16])
def test_an_adapter_of_experts_adds_what_it_does_in_torch(
    make_pair: Callable[..., Any], tmp_path: Path, scheme: str
) -> None:
    names = ["gate_proj", "up_proj", "down_proj"]
    check(make_pair("qwen3_moe", scheme, **SHAPE).path, tmp_path / "adapter", names)


@pytest.mark.parametrize("width", [64, NIGHTLY_128])
def test_that_of_every_token_is_adapted_where_it_is_one_of_the_stack_and_where_it_is_not(
    make_pair: Callable[..., Any], tmp_path: Path, width: int
) -> None:
    shape = {**SHAPE, "shared_expert_intermediate_size": width}
    names = [f"shared_expert.{part}_proj" for part in ("gate", "up", "down")]
    check(make_pair("qwen2_moe", "int8", **shape).path, tmp_path / "adapter", names)


def plain(rows: int, columns: int) -> PlainMatrix:
    data = torch.randn(rows, columns).numpy().tobytes()
    return PlainMatrix(data=data, scheme=Scheme.FP32, rows=rows, columns=columns)


def test_a_pair_of_whole_experts_is_shared_by_their_parts(make_pair: Callable[..., Any]) -> None:
    with ZSEReader(make_pair("qwen3_moe", "int8", **SHAPE).path) as reader:
        spec = spec_of(reader)
    (stack,) = (one for one in matrices_of(spec) if one.slots and len(one.part_rows) == 2)
    rows = stack.matrix.rows
    pair = LowRank(first_row=2 * rows, scale=2.0, down=plain(8, 128), up=plain(rows, 8))
    adapter = AdapterWeights(name="a", parts={stack.name: (pair,)})
    parts = parts_by_record(adapter, matrices_of(spec))
    first = stack.first_record + 2 * 2
    gate, up = parts[first : first + 2]
    assert [index for index, one in enumerate(parts) if one] == [first, first + 1]
    assert gate.down is up.down is pair.down
    assert gate.up.data + up.up.data == pair.up.data
    alone = image_bytes([None] * len(parts))
    assert image_bytes(parts) - alone <= 2 * 8 * (128 + rows) + 256


def test_memory_for_adapters_of_experts_is_asked_for(make_pair: Callable[..., Any]) -> None:
    sizes = []
    for experts in (4, 8):
        path = make_pair("qwen3_moe", "int8", **SHAPE, num_experts=experts).path
        with ZSEReader(path) as reader:
            sizes.append(largest_image_bytes(spec_of(reader), 64))
    assert sizes[1] - sizes[0] <= 4 * 3 * 32 + 256  # of records alone


def test_nothing_is_launched_for_experts_until_an_adapter_has_some(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    """Steps that were captured before are told of, so that they are captured anew."""
    runner = open_runner(make_pair("qwen3_moe", "int8", **SHAPE).path, **ROOM)
    backend: Any = runner._backend
    pool, places, told = backend._model.adapters, places_at_run_time(runner.spec), []
    nothing = SimpleNamespace(launcher=SimpleNamespace(launch=lambda *_: pytest.fail("launched")))
    for modules in (["q_proj"], ["down_proj"], ["q_proj"]):
        folder = write_adapter(tmp_path / str(len(told)), runner.spec, rank=8, modules=modules)
        adapter = runner.bind_adapter(read_adapter(folder, "a", places, max_rank=16))
        chunk = SequenceChunk(0, [9], 0, [2], kind_of(1), adapter=adapter)
        told.append(pool.send([chunk], backend._stream))
        if len(told) == 1:
            pool.add_to_pairs(nothing, "layers.0.experts.down", None, None, None, is_down=True)
    runner.close()
    assert told == [False, True, False]
