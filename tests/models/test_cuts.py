"""Where layers are cut: the best of all ways, and only where a model can be cut."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from family_shapes import shape_of

from zse.errors import UsageError
from zse.models import cuts
from zse.models.cuts import cut_layers
from zse.models.families import read_checkpoint
from zse.models.storage import Storage
from zse.models.work import LayerWork, ModelWork, work_of

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec


def spec_of_layers(family: str = "llama", **changes: Any) -> ModelSpec:
    config = shape_of(family, **changes)
    names = {"llama": "LlamaForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}
    return read_checkpoint({**config, "model_type": family, "architectures": [names[family]]})


def work_with(reads: list[int], held: list[int] | None = None) -> ModelWork:
    layers = [
        LayerWork(weight_bytes=weight, read_bytes=read, kv_bytes=0)
        for read, weight in zip(reads, held or reads, strict=True)
    ]
    return ModelWork(layers=tuple(layers), hidden_size=128)


def slowest(reads: list[int], ends: tuple[int, ...]) -> int:
    pairs = itertools.pairwise((0, *ends))
    return max(sum(reads[a:b]) + cuts._LAYER_READS * (b - a) for a, b in pairs)


def test_the_slowest_stage_is_as_fast_as_in_the_best_of_all_ways() -> None:
    rng = random.Random(5)
    for _ in range(40):
        count, stages = rng.randint(4, 9), rng.randint(2, 4)
        reads = [rng.randint(1, 100) << 20 for _ in range(count)]
        spec = spec_of_layers(num_hidden_layers=count)
        found = cut_layers(spec, work_with(reads), stages, context_tokens=64)
        ends = tuple(one.end for one in found)
        ways = itertools.combinations(range(1, count), stages - 1)
        assert slowest(reads, ends) == min(slowest(reads, (*way, count)) for way in ways)
        assert [one.first for one in found] == [0, *ends[:-1]]
        assert [one.read_bytes for one in found] == [
            sum(reads[one.first : one.end]) for one in found
        ]


def test_the_stage_with_the_head_has_fewer_layers() -> None:
    spec = spec_of_layers(num_hidden_layers=12, vocab_size=40_000)
    tensors = [Storage(quantization="int8").plan_tensor(one) for one in spec.weights()]
    work = work_of(spec, tensors, streams=1, context_tokens=64)
    first, second = cut_layers(spec, work, 2, context_tokens=64)
    assert first.end - first.first > second.end - second.first


def test_a_stage_takes_no_more_layers_than_its_device_holds() -> None:
    reads = [10 << 20] * 8
    spec = spec_of_layers(num_hidden_layers=8)
    found = cut_layers(
        spec, work_with(reads), 2, context_tokens=64, memory_bytes=(25 << 20, 100 << 20)
    )
    assert [one.end for one in found] == [2, 8]
    with pytest.raises(UsageError, match="do not hold"):
        cut_layers(spec, work_with(reads), 2, context_tokens=64, memory_bytes=(25 << 20, 25 << 20))


def test_all_stages_have_layers_of_every_window() -> None:
    types = ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention", "full_attention"]
    spec = spec_of_layers("gemma3_text", num_hidden_layers=6, layer_types=types, sliding_window=16)
    work = work_with([1 << 20] * 6)
    assert [one.end for one in cut_layers(spec, work, 2, context_tokens=64)] == [4, 6]
    assert [one.end for one in cut_layers(spec, work, 2, context_tokens=8)] == [3, 6]


def test_layers_stay_with_those_whose_keys_they_read() -> None:
    spec = spec_of_layers(num_hidden_layers=6)
    layers = list(spec.layers)
    mixer: Any = layers[4].mixer
    layers[4] = replace(layers[4], mixer=replace(mixer, kv_of_layer=1))
    shared = replace(spec, layers=tuple(layers))
    found = cut_layers(shared, work_with([1 << 20] * 6), 2, context_tokens=64)
    assert [one.end for one in found] in ([1, 6], [5, 6])
