"""Layers that keep the same tokens share a pool, and memory goes to whole sequences first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from zse.backends.kv_groups import KVGroups, groups_of
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.uniform import TensorNames, UniformDecoder
from zse.options import load_options

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec


def decoder(layers: tuple[int, ...]) -> ModelSpec:
    """Four layers, of which some see a window."""
    return UniformDecoder(
        family="mistral",
        vocab_size=100,
        hidden_size=128,
        intermediate_size=96,
        num_layers=4,
        num_heads=2,
        num_kv_heads=1,
        head_dim=64,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position=8192,
        sliding_window=100 if layers else None,
        sliding_layers=layers,
    ).spec(TensorNames())


def test_layers_are_grouped_by_what_they_see():
    groups = groups_of(decoder((0, 1, 3)), load_options(max_sequences=2, max_batch_tokens=64))
    assert dict(groups.of_layer) == {0: 1, 1: 1, 2: 0, 3: 1}
    assert groups.windows == (100,)
    # Two sequences and the ends of two prefixes, 6 blocks each, and what a step computes.
    assert groups.num_blocks(1000) == (1000, 4 * 6 + (64 + 2 * 64) // 32)
    assert groups.num_blocks(10) == (10, 10)


def test_a_window_as_long_as_the_context_is_none():
    groups = groups_of(decoder((0, 1)), load_options(max_context=100))
    assert (dict(groups.of_layer), groups.windows) == (dict.fromkeys(range(4), 0), ())


@pytest.mark.parametrize(("window", "group"), [(None, 0), (300, 2), (50, 1)])
def test_what_another_layer_reads_is_kept_as_long_as_it_is_seen(window: Any, group: int):
    spec = decoder((0, 1))
    reader = replace(spec.layers[3].mixer, kv_of_layer=0, window=window)
    layers = (*spec.layers[:3], replace(spec.layers[3], mixer=reader))
    groups = groups_of(replace(spec, layers=layers), load_options())
    assert dict(groups.of_layer) == {0: group, 1: 1, 2: 0}


@pytest.mark.parametrize("memory", [0, 999, 30_000, 10**6, 10**9])
def test_as_many_blocks_fit_as_leave_room_for_windows(memory: int):
    groups = KVGroups(of_layer={0: 0, 1: 1, 2: 2}, windows=(9, 50), most_blocks=(20, 100))
    sizes = [10, 40, 70]
    count = groups.fitting(memory, sizes, useful=1)
    assert groups.length_bytes(count, sizes) <= memory < groups.length_bytes(count + 1, sizes)


def test_where_whole_sequences_take_no_memory_there_are_as_many_blocks_as_are_of_use():
    groups = KVGroups(of_layer={0: 1}, windows=(9,), most_blocks=(20,))
    assert groups.fitting(800, [0, 40], useful=5000) == 5000
    assert groups.fitting(799, [0, 40], useful=5000) == 19


@pytest.mark.parametrize("on_gpu", [True, False])
def test_an_estimate_counts_windows_as_windows(on_gpu: bool):
    plain, windowed = (
        estimate_memory(
            ModelFacts(spec=decoder(layers)),
            "int8",
            on_gpu=on_gpu,
            context_tokens=8192,
        )
        for layers in ((), (0, 1, 3))
    )
    token_bytes = 2 * 64 * 2
    assert plain.kv_bytes == 4 * 8192 * token_bytes
    blocks = 2 * 6 + (2048 + 2 * 64) // 32  # of one sequence and a prefix, and of a step
    assert windowed.kv_bytes == (8192 + 3 * 32 * blocks) * token_bytes


def test_windows_take_half_of_a_small_memory_at_most_and_fewer_sequences_run():
    groups = groups_of(decoder((0, 1, 3)), load_options(max_sequences=64, max_batch_tokens=64))
    sizes, memory = [100, 300], 200_000
    fewer = groups.within(memory, sizes)
    assert fewer.most_blocks[0] * 300 <= memory // 2 < groups.most_blocks[0] * 300
    counts = [each.fitting(memory, sizes, useful=0) for each in (groups, fewer)]
    assert counts == [542, 1001]
    (pool,) = fewer.pools_of(fewer.num_blocks(counts[1]))
    assert pool.most_reserved == pool.num_blocks - (64 + 2 * 64) // 32
    assert groups.within(10 * memory, sizes) is groups  # room for all
    assert groups.within(1000, sizes) is groups  # not even room for one
    assert groups.pools_of(groups.num_blocks(10**6))[0].most_reserved is None


def test_where_all_layers_have_a_window_it_takes_all_memory():
    groups = groups_of(decoder((0, 1, 2, 3)), load_options(max_sequences=64, max_batch_tokens=64))
    fewer = groups.within(30_000, [0, 300])
    assert fewer.num_blocks(10**6) == (10**6, 100)
    assert fewer.fitting(30_000, [0, 300], useful=10**6) == 10**6
