"""Steps of a model whose weights are on their way: each kernel waits for its own, tokens for all."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from interpreted_gpu import HostMemory, HostPool, InterpretedGpu
from interpreted_runner import open_runner
from taken_places import takes_over
from weight_reads import WeightReads

from tests.backends.gpu.test_streamed import chunk
from zse.backends.gpu.graphs import Rehearsal, SampledRehearsal
from zse.backends.gpu.kept_weights import KeptWeights
from zse.backends.gpu.row_maxima import RowMaxima
from zse.backends.gpu.step_maker import GREEDY
from zse.backends.gpu.turning import Turning
from zse.backends.types import StepBatch
from zse.device.facts_of_gpus import H200
from zse.errors import FormatError, LoadCancelledError, SourceChangedError, StoreError
from zse.format import ZSEReader
from zse.format.errors import Rule
from zse.format.spec import CONTAINER
from zse.kernels.linear.weight import LinearWeight
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.quantize.locate import locate_model
from zse.settings import Settings
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from pathlib import Path

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("made")), quant="int4")


class HeldSource(LocalSource):
    """A file of which only the first groups can be read, until more are let through."""

    def __init__(self, path: Path, *, kind: str = "page cache") -> None:
        super().__init__(path, direct="never")
        with ZSEReader(path) as reader:
            self.groups = reader.header.loaded().groups
        self._kind = kind
        self._open_groups = 0
        self._changed = threading.Condition()
        self.fails = False

    @property
    def kind(self) -> str:
        return self._kind

    def let_through(self, count: int) -> None:
        with self._changed:
            self._open_groups = count
            self._changed.notify_all()

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        place = next(
            index for index, group in enumerate(self.groups) if offset_bytes < group.end_bytes
        )
        with self._changed:
            assert self._changed.wait_for(lambda: place < self._open_groups, WAIT_SECONDS)
        if self.fails and place == len(self.groups) - 1:
            raise StoreError("the disk is gone")
        super().read_into(offset_bytes, view)

    def interrupt(self) -> None:
        self.let_through(len(self.groups))


class RoomyPool(HostPool):
    def __init__(self, _reserve_bytes: int) -> None:
        HostMemory.__init__(self, 192 << 20)


class RoomyGpu(InterpretedGpu):
    """One that has memory for steps of long prompts."""

    def create_pool(self, reserve_bytes: int) -> HostPool:
        return RoomyPool(reserve_bytes)


class Opened:
    """A runner whose kernels read at once, and what they have read."""

    def __init__(
        self, path: Path, source: LocalSource | None = None, *, max_batch_tokens: int = 64
    ) -> None:
        made: list[WeightReads] = []

        def launches(stream: object) -> WeightReads:
            made.append(WeightReads(stream))
            return made[0]

        self.runner = open_runner(
            path,
            gpu=(InterpretedGpu if max_batch_tokens <= 64 else RoomyGpu)(),
            launches=launches,
            source=source,
            max_batch_tokens=max_batch_tokens,
        )
        self.launcher = made[0]
        self.launcher.learn(self.runner)
        self.outcome: object = None
        self._thread: threading.Thread | None = None

    def begin(self, batch: StepBatch) -> None:
        """Submit a step in a thread, as an engine does."""
        self._thread = threading.Thread(target=self._submit, args=(batch,))
        self._thread.start()

    def _submit(self, batch: StepBatch) -> None:
        try:
            self.runner.submit(batch).wait()
            self.outcome = "answered"
        except Exception as error:  # noqa: BLE001
            self.outcome = error

    def end(self) -> object:
        assert self._thread is not None
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        return self.outcome

    def wait_for_reads(self, count: int) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while len(self.launcher.reads) < count and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(0.02)  # in which a kernel too many would run
        assert len(self.launcher.reads) == count


PROMPT = StepBatch(chunks=[chunk(5, 0, 0)], sampling=[[SamplingRow(temperature=0.0)]])
TOKEN = StepBatch(chunks=[chunk(1, 5, 0)], sampling=[[SamplingRow(temperature=0.0, step=1)]])
PART = StepBatch(chunks=[chunk(5, 0, 0)], sampling=[[]])


@pytest.fixture(scope="module")
def expected(path: Path) -> list[tuple[object, ...]]:
    opened = Opened(path)
    opened.runner.settle()
    opened.launcher.reads.clear()
    opened.begin(PROMPT)
    assert opened.end() == "answered"
    reads = list(opened.launcher.reads)
    opened.runner.close()
    assert len(reads) > 30
    return reads


def test_a_prompt_goes_through_the_layers_that_are_there_while_others_are_on_their_way(
    path, expected
):
    source = HeldSource(path)
    opened = Opened(path, source)
    opened.begin(PROMPT)
    opened.wait_for_reads(0)
    seen = 0
    for count in range(1, len(source.groups)):
        source.let_through(count)  # the tables, then layer by layer
        end = time.monotonic() + WAIT_SECONDS
        while len(opened.launcher.reads) == seen and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.02)
        reads = list(opened.launcher.reads)
        assert seen < len(reads) < len(expected)
        assert reads == expected[: len(reads)]  # the bytes that the file has there
        seen = len(reads)
    assert opened.outcome is None
    source.let_through(len(source.groups))
    assert opened.end() == "answered"
    assert opened.launcher.reads == expected
    opened.runner.settle()
    opened.runner.close()


def test_a_chunk_of_a_prompt_that_asks_for_no_token_does_not_wait_for_the_head(path):
    source = HeldSource(path)
    opened = Opened(path, source)
    source.let_through(len(source.groups) - 1)
    opened.begin(PART)
    assert opened.end() == "answered"
    opened.begin(TOKEN)
    time.sleep(0.05)
    assert opened.outcome == "answered"  # of the chunk; the token's step still waits
    source.let_through(len(source.groups))
    assert opened.end() == "answered"
    opened.runner.close()


def damaged(path: Path, tmp_path: Path) -> Path:
    """Return a copy whose last group has one bit that its digest does not know."""
    copy = tmp_path / "damaged.zse"
    content = bytearray(path.read_bytes())
    with ZSEReader(path) as reader:
        last = reader.header.groups[-1]
    content[last.offset_bytes + 7] ^= 1
    copy.write_bytes(content)
    return copy


def test_a_damaged_last_group_ends_the_step_and_the_load_alike_and_no_token_leaves(
    path, tmp_path, expected
):
    source = HeldSource(damaged(path, tmp_path), kind="peers")
    opened = Opened(path, source)
    source.let_through(len(source.groups) - 1)
    opened.begin(PROMPT)
    time.sleep(0.05)
    assert opened.outcome is None
    source.let_through(len(source.groups))
    with breaks(Rule.CHECKSUM_MISMATCH) as found:
        opened.runner.settle()
    error = opened.end()
    assert isinstance(error, LoadCancelledError)
    assert str(error.__cause__) == str(found.value)
    reads = opened.launcher.reads
    assert 0 < len(reads) < len(expected)  # nothing of the head, nor of what chooses
    assert reads == expected[: len(reads)]
    opened.runner.close()


def test_a_damaged_first_group_lets_no_layer_run(path, tmp_path):
    copy = tmp_path / "damaged.zse"
    content = bytearray(path.read_bytes())
    with ZSEReader(path) as reader:
        content[reader.header.groups[0].offset_bytes] ^= 1
    copy.write_bytes(content)
    source = HeldSource(copy, kind="peers")
    opened = Opened(path, source)
    opened.begin(PROMPT)
    source.let_through(len(source.groups))
    assert isinstance(opened.end().__cause__, FormatError)
    assert opened.launcher.reads == []
    opened.runner.close()


def test_a_disk_that_fails_ends_every_step_until_the_model_is_closed(path):
    source = HeldSource(path)
    source.fails = True
    opened = Opened(path, source)
    source.let_through(len(source.groups))
    for batch in (PROMPT, TOKEN):
        opened.begin(batch)
        assert isinstance(opened.end().__cause__, StoreError)
    with pytest.raises(StoreError, match="the disk is gone"):
        opened.runner.settle()
    opened.runner.close()


def test_a_file_that_was_written_to_meanwhile_gives_no_token(path, tmp_path):
    copy = tmp_path / "copy.zse"
    copy.write_bytes(path.read_bytes())
    source = HeldSource(copy)
    opened = Opened(copy, source)
    opened.begin(PROMPT)
    source.let_through(3)
    with copy.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    source.let_through(len(source.groups))
    assert isinstance(opened.end().__cause__, SourceChangedError)
    opened.runner.close()


def test_closing_a_model_frees_a_step_that_waits_for_its_weights(path):
    source = HeldSource(path)
    opened = Opened(path, source)
    source.let_through(2)
    opened.begin(PROMPT)
    time.sleep(0.02)
    opened.runner.stop_settling()
    assert isinstance(opened.end(), LoadCancelledError)
    with pytest.raises(LoadCancelledError):
        opened.runner.settle()
    opened.runner.close()


def with_another_group(path: Path, target: Path, name: str) -> Path:
    """Write a copy of a file of which one group has other numbers, and their digest."""
    with ZSEReader(path) as reader:
        header = reader.header
    content = bytearray(path.read_bytes())
    groups = list(header.groups)
    index = [group.name for group in groups].index(name)
    group = groups[index]
    content[group.offset_bytes + 512] ^= 1
    digest = hashlib.sha256(content[group.offset_bytes : group.end_bytes]).hexdigest()
    groups[index] = replace(group, sha256=digest)
    sealed = CONTAINER.seal(replace(header, groups=tuple(groups)).to_bytes())
    content[: len(sealed)] = sealed
    target.write_bytes(content)
    return target


def test_a_model_in_the_place_of_another_computes_while_what_differs_arrives(
    path, tmp_path, monkeypatch
):
    tuned = with_another_group(path, tmp_path / "tuned.zse", "layers.2")
    alone = Opened(tuned)
    alone.runner.settle()
    alone.launcher.reads.clear()
    alone.begin(PROMPT)
    assert alone.end() == "answered"
    alone.runner.close()
    expected = alone.launcher.reads
    opened, source = Opened(path), HeldSource(tuned)
    opened.runner.settle()
    monkeypatch.setattr("zse.backends.gpu.arrival.source_of", lambda _reader: source)
    opened.runner, moved_bytes = takes_over(opened.runner, tuned)
    opened.launcher.learn(opened.runner)
    assert moved_bytes == source.groups[3].length_bytes
    opened.begin(PROMPT)
    wait_until(lambda: opened.launcher.reads)
    time.sleep(0.05)
    reads = list(opened.launcher.reads)
    assert 0 < len(reads) < len(expected)  # two layers, which both models have
    assert reads == expected[: len(reads)]
    assert opened.outcome is None
    source.let_through(len(source.groups))
    assert opened.end() == "answered"
    assert opened.launcher.reads == expected
    opened.runner.settle()
    assert not opened.runner._backend._passes.is_arriving
    opened.runner.close()


def test_preparations_leave_off_when_a_step_is_asked_for(path, expected):
    source = HeldSource(path)
    opened = Opened(path, source)
    backend = opened.runner._backend
    assert backend.prepare_more()
    opened.begin(PROMPT)
    end = time.monotonic() + WAIT_SECONDS
    while not backend._is_asked and time.monotonic() < end:
        time.sleep(0.001)
    assert not backend.prepare_more()
    source.let_through(len(source.groups))
    assert opened.end() == "answered"
    assert opened.launcher.reads == expected
    opened.runner.settle()
    assert not backend._passes.is_arriving
    opened.runner.close()


def test_nothing_is_prepared_where_a_step_is_expected_at_once(path, monkeypatch):
    source = HeldSource(path)
    opened = Opened(path, source)
    runner, prepared = opened.runner, []
    monkeypatch.setattr(runner._backend, "prepare_more", lambda: prepared.append(1))
    runner.expect_step()
    source.let_through(len(source.groups))
    runner.settle()
    assert not prepared
    assert not runner._backend._passes.is_arriving
    runner.close()


@pytest.mark.parametrize(("tokens", "is_turned"), [(600, True), (90_000, True), (20, False)])
def test_weights_are_turned_ahead_of_a_long_prompt_that_is_expected(path, tokens, is_turned):
    opened = Opened(path, max_batch_tokens=1024)
    backend = opened.runner._backend
    prepared: list[str] = []
    opened.launcher.prepare = lambda *variants: prepared.extend(each.key for each in variants)
    wait_until(lambda: backend._passes._arrival.has_arrived)
    opened.runner.expect_step(tokens)
    opened.runner.settle()
    assert len(opened.launcher.reads) == 2 * len(backend._model.stayed_matrices) * is_turned
    loaded = len(prepared)
    assert bool(loaded) == is_turned
    prepared.clear()
    backend._maker.expect_prompt(
        min(tokens, 600), lambda _step: None, partial(runner_work, opened.runner)
    )
    assert len(opened.launcher.reads) == 2 * len(backend._model.stayed_matrices) * is_turned
    assert len(prepared) <= loaded
    opened.runner.close()


def test_weights_that_did_not_come_right_are_told_by_who_expects_a_prompt(path, tmp_path):
    copy = tmp_path / "copy.zse"
    copy.write_bytes(path.read_bytes())
    source = HeldSource(copy)
    opened = Opened(copy, source, max_batch_tokens=1024)
    with copy.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    source.let_through(len(source.groups))
    arrival = opened.runner._backend._passes._arrival
    wait_until(lambda: arrival.has_arrived)
    opened.runner.expect_step(600)
    with pytest.raises(SourceChangedError):
        opened.runner.settle()
    opened.runner.close()


def test_a_layer_finds_what_it_reads_when_another_thread_has_just_seen_all_arrive(path):
    source = HeldSource(path)
    opened = Opened(path, source)
    passes = opened.runner._backend._passes
    source.let_through(len(source.groups))
    arrival = passes._arrival
    passes.settle()
    part = passes._part(0)
    assert arrival.wait_for_group(passes._numbers[part.groups[0]]) is None
    assert part.holds(opened.runner._backend._model.weights.linears["layers.0.qkv.weight"])
    assert not part.holds(opened.runner._backend._model.weights.linears["layers.1.qkv.weight"])
    opened.runner.close()


def runner_work(runner, step):
    return runner._forward(runner._backend, step)


def test_kernels_of_all_layers_are_those_of_the_unlike_ones(path):
    opened = Opened(path, max_batch_tokens=1024)
    opened.runner.settle()
    maker = opened.runner._backend._maker
    for rows in (16, 64, 600):
        step = maker._step(maker._prompt_shape(rows), 0, maker._memory.sequences, GREEDY.sampling)
        work = partial(runner_work, opened.runner)
        whole = maker._remembered(step, work, Rehearsal(H200))
        places = opened.runner._backend._model.unlike_layers
        sample = maker._remembered(step, work, SampledRehearsal(H200, places))
        assert sample.num_launches < whole.num_launches
        assert {each.key for each in sample.variants()} == {each.key for each in whole.variants()}
    opened.runner.close()


def test_who_asks_for_a_step_waits_for_no_more_than_one_preparation(path, expected):
    source = HeldSource(path)
    opened = Opened(path, source)
    runner, done = opened.runner, []
    prepare = runner._backend.rest_of_start.prepare

    def one():
        done.append(prepare())
        if len(done) == 2:
            opened.begin(PROMPT)
            wait_until(lambda: runner._is_asked)
        return done[-1]

    runner._backend.rest_of_start.prepare = one
    settling = threading.Thread(target=runner.settle)
    settling.start()
    wait_until(lambda: len(done) == 2 and runner._backend._is_asked)
    source.let_through(len(source.groups))
    assert opened.end() == "answered"
    settling.join(WAIT_SECONDS)
    assert opened.launcher.reads == expected
    assert done == [True, True]  # of many more
    runner.close()


def wait_until(is_true):
    end = time.monotonic() + WAIT_SECONDS
    while not is_true() and time.monotonic() < end:
        time.sleep(0.001)


def test_facts_of_matrices_are_found_as_these_arrive(monkeypatch):
    found: list[int] = []
    monkeypatch.setattr(
        "zse.backends.gpu.row_maxima.find_row_maxima",
        lambda _launcher, weight, _address: found.append(weight.weights),
    )
    matrices = [
        LinearWeight(scheme="int4", rows=64, columns=128, group_size=32, weights=1000 * index)
        for index in range(1, 6)
    ]
    maxima = RowMaxima(InterpretedGpu(), matrices)
    maxima.find_some(None, lambda weight: weight.weights < 3000)
    assert found == [1000, 2000]
    maxima.find_some(None, lambda weight: weight.weights < 4000)
    assert found == [1000, 2000, 3000]
    maxima.find(None)
    maxima.find(None)
    assert found == [1000, 2000, 3000, 4000, 5000]
    maxima.forget()
    maxima.find(None)
    assert found[5:] == found[:5]


@pytest.mark.parametrize("arrives", ["before a layer", "at the head"])
def test_a_pass_that_began_while_weights_arrived_finds_all_facts_before_it_needs_them(
    monkeypatch, path, arrives
):
    found: list[int] = []
    monkeypatch.setattr(
        "zse.backends.gpu.row_maxima.find_row_maxima",
        lambda _launcher, weight, _address: found.append(weight.weights),
    )
    source = HeldSource(path)
    opened = Opened(path, source)
    model, passes = opened.runner._backend._model, opened.runner._backend._passes
    names = [f"layers.{index}.qkv.weight" for index in range(3)]
    wanted = [model.weights.linears[name].weights for name in (*names, "embed.weight")]
    maxima = RowMaxima(
        InterpretedGpu(), [model.weights.linears[name] for name in (*names, "embed.weight")]
    )
    source.let_through(3)
    passes.turn(Turning(maxima, KeptWeights(InterpretedGpu(), (), 0)), None)
    passes.before_layers()
    passes.enter(0)
    assert found == wanted[:1]
    passes.enter(1)
    assert found == wanted[:2]
    source.let_through(len(source.groups))
    if arrives == "before a layer":
        opened.runner.settle()  # as the thread of the boot does
        passes.enter(2)
    else:
        passes.before_head()
    assert sorted(found) == sorted(wanted)
    assert len(found) == 4
    opened.runner.close()


def test_the_copy_that_is_damaged_differs_in_its_last_group_alone(path, tmp_path):
    with ZSEReader(path) as reader:
        groups = reader.header.groups
    wrong = [
        group.name
        for group in groups
        if hashlib.sha256(
            damaged(path, tmp_path).read_bytes()[group.offset_bytes : group.end_bytes]
        ).hexdigest()
        != group.sha256
    ]
    assert wrong == [groups[-1].name]
