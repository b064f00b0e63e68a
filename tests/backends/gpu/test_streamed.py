"""Kernels of a model that streams find the weights that those of a whole one find, in each step."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from interpreted_runner import open_runner
from weight_reads import LateGpu, WeightReads

from zse.backends.gpu import closing
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import DeviceError, SourceChangedError
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.models.runner import ModelRunner

SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 72,
    "max_position_embeddings": 64,
    "num_hidden_layers": 7,
}


@pytest.fixture(scope="module", autouse=True)
def begins_no_norms() -> Iterator[None]:
    """A model that streams begins no norm in a product; nor may one that it is held against."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "CLOSED_ROWS", 0)
        yield


@pytest.fixture(scope="module")
def path(make_pair: Callable[..., object]) -> Path:
    return make_pair("qwen2", "int4", **SHAPE).path


def chunk(count: int, start: int, slot: int) -> SequenceChunk:
    return SequenceChunk(slot, [5] * count, start, (1 + slot, 4 + slot), kind_of(count))


def steps(seed: int, count: int = 6) -> list[StepBatch]:
    """Return single tokens, prompts, drafts and mixtures of them."""
    source = random.Random(seed)
    batches = []
    for _ in range(count):
        chunks, rows = [], []
        for slot in range(source.choice((1, 1, 2))):
            one = chunk(source.choice((1, 1, 1, 5)), 3, slot)
            if source.random() < 0.3:
                one = chunk(3, 3, slot)._replace(kind="verify")
            chunks.append(one)
            wanted = 3 if one.kind == "verify" else 1
            rows.append([SamplingRow(temperature=0.0, step=row) for row in range(wanted)])
        batches.append(StepBatch(chunks=chunks, sampling=rows))
    return batches


class Opened:
    """A runner on a late GPU, and what its kernels read."""

    def __init__(self, path: Path, **options: object) -> None:
        made: list[WeightReads] = []

        def launches(stream: object) -> WeightReads:
            made.append(WeightReads(stream))
            return made[0]

        self.gpu = LateGpu()
        self.runner: ModelRunner = open_runner(path, gpu=self.gpu, launches=launches, **options)
        self.launcher = made[0]
        self.launcher.learn(self.runner)

    def reads_of(self, batch: StepBatch) -> list[tuple[object, ...]]:
        self.launcher.reads.clear()
        self.runner.execute(batch)
        self.runner._backend._stream.synchronize()
        return list(self.launcher.reads)

    @property
    def passes(self):
        return self.runner._backend._passes


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[int, list[object]]:
    whole = Opened(path)
    found = {seed: [whole.reads_of(batch) for batch in steps(seed)] for seed in range(4)}
    whole.runner.close()
    assert len({line for reads in found[0] for line in reads}) > 20
    return found


@pytest.mark.parametrize(
    ("resident", "slots", "pinned"), [(1, 2, 0), (3, 2, 1.0), (2, 3, 0), (4, 3, 1.0)]
)
def test_each_kernel_reads_the_weights_of_its_layer(path, expected, resident, slots, pinned):
    streamed = Opened(
        path, stream="on", resident_layers=resident, stream_slots=slots, ram_gib=pinned or 1e-6
    )
    weights = streamed.passes._weights
    assert len(weights.plan.resident) <= resident
    for seed, reads in expected.items():
        assert [streamed.reads_of(batch) for batch in steps(seed)] == reads
        weights.wait_pinned()
    assert (weights.pinned_bytes > 0) == (pinned > 0)
    streamed.runner.close()


def test_a_model_that_would_fit_streams_where_it_is_told_to(path, expected):
    streamed = Opened(path, stream="on")
    assert len(streamed.passes._weights.plan.streamed) == 2
    assert [streamed.reads_of(batch) for batch in steps(0)] == expected[0]
    streamed.runner.close()


def test_a_pass_that_broke_off_leaves_the_next_one_whole(path, expected):
    streamed = Opened(path, stream="on", resident_layers=2)
    for fails_at in (1, 9, 17, 40):
        streamed.launcher.fails_at = fails_at
        with pytest.raises(RuntimeError, match="refused"):
            streamed.reads_of(StepBatch(chunks=[chunk(5, 0, 0)], sampling=[[SamplingRow()]]))
        streamed.launcher.fails_at = 0
        streamed.runner._backend._stream.synchronize()
        assert [streamed.reads_of(batch) for batch in steps(1)] == expected[1]
    streamed.runner.close()


def test_memory_that_someone_else_takes_makes_more_layers_stream(path, expected):
    streamed = Opened(path, stream="on", resident_layers=5)
    weights = streamed.passes._weights
    assert [streamed.reads_of(batch) for batch in steps(0)] == expected[0]
    before = weights.plan
    weights._tracker._clock = lambda: 1e12
    streamed.gpu.free_bytes = 200 << 20
    found = [streamed.reads_of(batch) for batch in steps(2)]
    after = weights.plan
    assert len(after.resident) < len(before.resident)
    assert after.total_bytes < before.total_bytes
    streamed.launcher.learn(streamed.runner)
    assert len(found) == len(expected[2])
    assert [streamed.reads_of(batch) for batch in steps(3)] == expected[3]
    streamed.runner.close()


def test_a_step_that_finds_no_memory_is_computed_in_less(path, expected, monkeypatch):
    class NoMemoryError(DeviceError):
        is_out_of_memory = True

    streamed = Opened(path, stream="on", resident_layers=5)
    weights = streamed.passes._weights
    left = [1]

    def allocate(length_bytes):
        if left:
            left.pop()
            raise NoMemoryError("out of GPU memory")
        return LateGpu.allocate(streamed.gpu, length_bytes)

    monkeypatch.setattr(streamed.gpu, "allocate", allocate)
    assert len(weights.plan.resident) == 5
    streamed.reads_of(steps(2)[0])
    assert not left
    assert weights.plan.resident == ()
    streamed.launcher.learn(streamed.runner)
    assert [streamed.reads_of(batch) for batch in steps(3)] == expected[3]
    left.append(1)
    streamed.runner._backend._graphs.clear()
    single = StepBatch(chunks=[chunk(1, 0, 0)], sampling=[[SamplingRow(temperature=0.0)]])
    with pytest.raises(NoMemoryError):
        streamed.reads_of(single)
    streamed.runner.close()


def test_a_budget_for_less_than_two_layers_says_what_is_needed(path):
    gpu = LateGpu(free_bytes=(512 << 20) + 1000)
    with pytest.raises(DeviceError, match="streaming needs at least"):
        open_runner(path, gpu=gpu, launches=WeightReads, stream="on")


def test_a_file_that_is_written_to_stops_the_steps(path, tmp_path):
    own = tmp_path / "own.zse"
    own.write_bytes(path.read_bytes())
    streamed = Opened(own, stream="on", resident_layers=1)
    streamed.reads_of(steps(0)[0])
    with own.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(SourceChangedError, match="was written to"):
        list(map(streamed.reads_of, steps(1)))
    streamed.runner.close()
