"""Blocks go to pinned host memory and come back byte by byte, at a few copies a run."""

from __future__ import annotations

import ctypes
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from interpreted_gpu import InterpretedGpu
from interpreted_runner import open_runner

from zse.backends.gpu.host_arena import HostArena, runs_of_pairs
from zse.backends.gpu.kv_pool import KVPool, layout_for
from zse.backends.kv_groups import groups_of
from zse.engine.loading import make_core
from zse.engine.request import Request, SamplingParams
from zse.errors import UsageError
from zse.format import ZSEReader
from zse.models.families import read_header
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES: dict[str, Any] = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_hidden_layers": 1,
}


@pytest.fixture
def path(make_pair: Callable[..., Any]) -> Path:
    return make_pair("llama", "int8", **SIZES).path


def test_runs_are_neighbours_on_both_sides_within_a_slab() -> None:
    assert list(runs_of_pairs([4, 3, 9], [1, 0, 2], 8)) == [(3, 0, 2), (9, 2, 1)]
    assert list(runs_of_pairs([1, 2, 3], [3, 4, 5], 4)) == [(1, 3, 1), (2, 4, 2)]
    assert list(runs_of_pairs([1, 2], [5, 4], 8)) == [(1, 5, 1), (2, 4, 1)]
    assert list(runs_of_pairs([], [], 8)) == []


def test_without_a_thread_to_pin_with_there_is_no_host_memory_and_steps_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
    gpu = InterpretedGpu()
    layout = layout_for(spec, "bf16", groups_of(spec, load_options(block_size=32)))
    arena = HostArena(gpu, KVPool(gpu, layout, [2]), gpu.create_stream(), 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert arena.open_slots() == 0
    assert arena.open_slots() == 0, "nobody tries again for each block that leaves"
    assert "no host memory" in caplog.text
    arena.close()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("slab_blocks", [1, 3, 100])
def test_blocks_come_back_into_any_place(path: Path, dtype: str, slab_blocks: int) -> None:
    with ZSEReader(path) as reader:
        spec = read_header(reader.header.model_config)
    gpu, rng = InterpretedGpu(), random.Random(slab_blocks)
    layout = layout_for(spec, dtype, groups_of(spec, load_options(block_size=32)))
    pool, stream = KVPool(gpu, layout, [12]), gpu.create_stream()
    (block_bytes,) = layout.block_bytes()
    arena = HostArena(gpu, pool, stream, 8 * block_bytes, slab_bytes=slab_blocks * block_bytes)
    assert arena.most_slots == 8
    arena.wait_until_pinned()
    assert arena.open_slots() == 8
    assert arena.length_bytes <= 8 * block_bytes, "no more than was allowed"
    memory = (ctypes.c_ubyte * pool.length_bytes).from_address(pool._block.address)
    memory[:] = rng.randbytes(pool.length_bytes)

    def content(block: int) -> list[bytes]:
        pieces = layout.layers[0].pieces(pool.layers[0])
        return [ctypes.string_at(address + block * size, size) for address, size in pieces]

    blocks, slots = rng.sample(range(12), 8), rng.sample(range(8), 8)
    before = [content(block) for block in blocks]
    arena.keep(blocks, slots)
    memory[:] = bytes(pool.length_bytes)
    others = rng.sample(range(12), 8)
    arena.bring(slots, others)
    assert [content(block) for block in others] == before
    arena.close()
    assert arena.length_bytes == 0


def answers(path: Path, prompts: list[list[int]], **options: Any) -> tuple[list[list[int]], Any]:
    """Answer prompts one behind the other; return the tokens, and the engine's account."""
    runner = open_runner(path, num_blocks=2, max_sequences=2, **options)
    core = make_core(runner, load_options(num_blocks=2, max_sequences=2, **options))
    if (tier := core.cache.tier) is not None:
        tier._host.wait_until_pinned()
    found = []
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0, max_tokens=1)
        core.add_request(Request(request_id=f"r{number}", prompt_token_ids=prompt, params=params))
        tokens = []
        while core.has_work:
            tokens += [event.token_id for event in core.step()]
        found.append(tokens)
    core.check_consistency()
    stats = core.stats()
    core.close()
    return found, stats


def test_answers_are_those_of_an_engine_that_computed_all_again(path: Path) -> None:
    rng = random.Random(3)
    one, other = ([rng.randrange(3, 300) for _ in range(40)] for _ in range(2))
    prompts = [one, other, one]
    expected, plain = answers(path, prompts, kv_dtype="int4")
    found, stats = answers(path, prompts, kv_dtype="int4", prefix_host_gib=0.01)
    assert found == expected
    assert plain.host_hit_tokens == plain.host_blocks_total == 0
    assert stats.host_hit_tokens == stats.prefix_hit_tokens == 32
    assert 0 < stats.host_blocks_used <= stats.host_blocks_kept < stats.host_blocks_total


def test_a_processor_has_no_second_memory(path: Path) -> None:
    options = load_options(device="cpu", num_blocks=4, threads=1, prefix_host_gib=1.0)
    runner = load_runner(path, options)
    with pytest.raises(UsageError, match="prefixes go to host memory from a GPU"):
        make_core(runner, options)
    runner.close()


def test_windows_are_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = open_runner(path, num_blocks=4)
    monkeypatch.setattr(runner, "windows", (object(),))
    with pytest.raises(UsageError, match="layers with a window do not go to host memory"):
        runner.host_blocks(1 << 20)
    runner.close()
