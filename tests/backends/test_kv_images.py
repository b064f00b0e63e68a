"""Blocks leave a pool and come back with the same bytes, on every backend."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import interpreted_gpu
import pytest
from attention_models import mixed
from model_pairs import make_pair

from zse.backends.gpu.block_copies import BlockCopies, images_of
from zse.backends.gpu.kv_pool import KVPool, layout_for
from zse.backends.kv_groups import groups_of
from zse.backends.kv_images import runs_of_blocks
from zse.errors import EngineError
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_pair"]

SIZES: dict[str, Any] = {"num_blocks": 12, "block_size": 8, "threads": 1, "max_sequences": 2}
WAYS = [("cpu", "fp16"), ("cpu", "int8"), ("torch", "fp32"), ("torch", "int8")]


def test_runs_are_told_with_their_places():
    assert runs_of_blocks([5, 6, 7, 2, 9, 8]) == [(0, 5, 3), (3, 2, 1), (4, 9, 1), (5, 8, 1)]
    assert runs_of_blocks([]) == []


@pytest.mark.parametrize(("device", "dtype"), WAYS, ids=str)
def test_an_image_comes_back_wherever_it_is_put(
    make_pair: Callable[..., Any], device: str, dtype: str
):
    """Two groups of layers, since the model has windows; blocks are written out of order."""
    path = make_pair("gemma3", "int8", sliding_window=16).path
    with_dtype = load_options(device=device, kv_dtype=dtype, **SIZES)
    runner = load_runner(path, with_dtype)
    try:
        numbers = random.Random(1)
        for group, size in enumerate(runner.kv_images.block_bytes):
            assert size > 0
            given = numbers.randbytes(4 * size)
            runner.write_blocks(group, [7, 2, 3, 9], memoryview(given))
            assert runner.read_blocks(group, [7, 2, 3, 9]) == given
            third = runner.read_blocks(group, [3])
            runner.write_blocks(group, [0, 1], memoryview(given), first=2)
            assert runner.read_blocks(group, [0]) == third
            assert runner.read_blocks(group, [1]) == runner.read_blocks(group, [9])
            with pytest.raises(EngineError):
                runner.write_blocks(group, [0, 1], memoryview(given), first=3)
    finally:
        runner.close()


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_a_gpus_image_comes_back_wherever_it_is_put(dtype: str):
    spec = mixed()
    groups = groups_of(spec, load_options(max_sequences=2, max_context=4096))
    layout = layout_for(spec, dtype, groups)
    gpu: Any = interpreted_gpu.InterpretedGpu()
    pool = KVPool(gpu, layout, [12] * (1 + len(groups.windows)))
    images = images_of(spec, pool, 32)
    numbers = random.Random(2)
    for group, size in enumerate(images.block_bytes):
        given = numbers.randbytes(3 * size)
        copied = BlockCopies(gpu, pool, gpu.create_stream())
        copied.write(group, [4, 5, 1], memoryview(given), 0)
        found = bytearray(3 * size)
        copied.read(group, [4, 5, 1], memoryview(found))
        assert found == given
        last = bytearray(size)
        copied.read(group, [1], memoryview(last))
        copied.write(group, [8], memoryview(given), 2)
        other = bytearray(size)
        copied.read(group, [8], memoryview(other))
        assert other == last
        copied.finish()


def test_layouts_have_other_names_where_images_do_not_fit(make_pair: Callable[..., Any]):
    path = make_pair("gemma3", "int8", sliding_window=16).path
    names = set()
    for options in ({}, {"kv_dtype": "int8"}, {"block_size": 16}):
        runner = load_runner(path, load_options(device="cpu", **{**SIZES, **options}))
        names.add(runner.kv_images.layout)
        runner.close()
    assert len(names) == 3
