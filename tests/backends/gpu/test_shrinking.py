"""A GPU's KV pool that becomes smaller: steps, captured ones and the host's copies use the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from interpreted_gpu import HostMemory, InterpretedGpu
from interpreted_runner import open_runner

from tests.backends.gpu.test_streamed import chunk
from zse.backends.types import StepBatch
from zse.device.facts_of_gpus import H200
from zse.errors import DeviceError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.quantize.locate import locate_model
from zse.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = [[SamplingRow(temperature=0.0)]]
TOKEN = StepBatch(chunks=[chunk(1, 5, 0)], sampling=GREEDY)
PROMPT = StepBatch(chunks=[chunk(5, 0, 0)], sampling=GREEDY)


class NoMemoryError(DeviceError):
    is_out_of_memory = True


class SmallGpu(InterpretedGpu):
    """A GPU that can be told how large an allocation may be."""

    most_bytes = 1 << 40

    def __init__(self) -> None:
        super().__init__()
        self._made: list[HostMemory] = []  # so that nothing lies where something lay

    def allocate(self, length_bytes: int) -> HostMemory:
        if length_bytes > self.most_bytes:
            raise NoMemoryError(f"no memory for {length_bytes} bytes")
        self._made.append(super().allocate(length_bytes))
        return self._made[-1]


class Pointers:
    """Notes where kernels are told to look."""

    device = H200

    def __init__(self, stream: object) -> None:
        self._stream = stream
        self.seen: set[int] = set()

    def prepare(self, *_: object) -> None:
        pass

    def launch(self, variant: object, _grid: object, *arguments: object) -> None:
        found = {
            int(value)
            for argument, value in zip(variant.arguments, arguments, strict=True)
            if argument.is_pointer
        }
        self._stream.put(lambda: self.seen.update(found))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("made")), quant="int4")


@pytest.fixture
def opened(path):
    made = []

    def launches(stream):
        made.append(Pointers(stream))
        return made[0]

    gpu = SmallGpu()
    runner = open_runner(path, gpu=gpu, launches=launches, num_blocks=16)
    runner.settle()
    yield gpu, runner, made[0]
    runner.close()


def looked_into(launcher, pool, end):
    return any(pool <= address < end for address in launcher.seen)


def test_steps_and_captured_ones_use_the_smaller_pool_and_nothing_of_the_old_one(opened):
    _, runner, launcher = opened
    backend = runner._backend
    for batch in (PROMPT, TOKEN, TOKEN):
        runner.execute(batch)
    assert backend._graphs
    block = backend._memory.sequences.cache._block
    old = block.address, block.address + block.length_bytes
    assert runner.can_shrink
    runner.shrink(12, least_blocks=4)
    assert (runner.num_blocks, backend.num_blocks) == (12, 12)
    assert not backend._graphs
    pool = backend._memory.sequences.cache
    assert pool.length_bytes < old[1] - old[0]
    new = pool._block.address, pool._block.address + pool.length_bytes
    launcher.seen.clear()
    for batch in (PROMPT, TOKEN, TOKEN):
        runner.execute(batch)
    assert looked_into(launcher, *new)
    assert not looked_into(launcher, *old)


def test_a_pool_that_finds_too_little_memory_is_smaller_still_and_not_below_what_is_needed(opened):
    gpu, runner, _ = opened
    each = runner._backend._memory.sequences.cache.length_bytes // 17
    gpu.most_bytes = each * 9
    runner.shrink(14, least_blocks=4)
    assert 4 <= runner.num_blocks <= 8
    gpu.most_bytes = each * 3
    with pytest.raises(NoMemoryError):
        runner.shrink(6, least_blocks=4)


def test_blocks_in_host_memory_come_back_into_the_smaller_pool(opened):
    _, runner, _ = opened
    backend = runner._backend
    arena = runner.host_blocks(1 << 22)
    arena.wait_until_pinned()
    image = runner.read_blocks(0, [3])
    content = bytes(range(256)) * (len(image) // 256)
    runner.write_blocks(0, [3], memoryview(bytearray(content)))
    arena.keep([3], [0])
    runner.shrink(8, least_blocks=4)
    assert runner.read_blocks(0, [5]) != content
    arena.bring([0], [5])
    assert runner.read_blocks(0, [5]) == content
    assert backend.num_blocks == 8
