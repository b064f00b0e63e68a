"""Layers that are launched after the pattern of one: the same launches as the program's own."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import stub_libcuda
from random_files import BIASES, write_random_file
from sample_packs import write_stub_pack
from taken_places import hold_weights, takes_over

from zse.backends.gpu.patterns import CHECKS, Kind, Patterns
from zse.backends.gpu.repeating import RepeatingLauncher
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.device.cuda import repetition
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.device.loader.library import load_library
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 64,
    "vocab_size": 96,
    "max_position": 2048,
    "num_layers": 8,
}
BLOCKS_EACH = 40


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return write_stub_pack(tmp_path_factory.mktemp("kernels") / "sm_90.zkp")


@pytest.fixture
def stub(monkeypatch):
    """The driver, which remembers what it was told to launch."""
    monkeypatch.setenv("ZSE_STUB_TOTAL", str(4 << 30))
    path, real_open = stub_libcuda.build(), Gpu.open
    monkeypatch.setattr(Gpu, "open", lambda ordinal: real_open(ordinal, driver=Driver(str(path))))
    return stub_libcuda.Stub(path)


@pytest.fixture(params=["by C", "by Python"])
def library(request, monkeypatch):
    """Which of the two ways rounds are launched."""
    if request.param == "by Python":
        monkeypatch.setattr(repetition, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("there is no library of C for this machine")


@pytest.fixture
def open_runner(pack, stub, tmp_path):
    runners = []

    def opened(**numbers):
        path = tmp_path / f"model-{len(runners)}.zse"
        write_random_file(path, "int4", **{**SHAPE, **numbers})
        options = load_options(
            device="cuda",
            kernels=str(pack),
            max_sequences=16,
            max_batch_tokens=1024,
            num_blocks=16 * BLOCKS_EACH,
        )
        runners.append(load_runner(path, options))
        return runners[-1]

    yield opened
    for runner in runners:
        runner.close()


def random_batch(draw):
    """Return a step with some prompts and some answers, each of a sequence of its own."""
    chunks = []
    for slot in range(draw.randint(1, 12)):
        is_prompt = slot == 0 or draw.random() < 0.3
        count = draw.choice([2, 9, 70, 300]) if is_prompt else 1
        start = draw.randrange(BLOCKS_EACH * 32 - count)
        blocks = range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH)
        tokens = [draw.randrange(96) for _ in range(min(count, 1024 // 12))]
        chunks.append(SequenceChunk(slot, tokens, start, list(blocks), kind_of(len(tokens))))
    return StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)] for _ in chunks])


def filled_batch(draw):
    """Return a step of 400 rows: some answers, and a piece of a prompt."""
    answers = draw.randint(1, 11)
    counts = [*[1] * answers, 400 - answers]
    chunks = []
    for slot, count in enumerate(counts):
        start = draw.randrange(BLOCKS_EACH * 32 - count)
        blocks = list(range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH))
        tokens = [draw.randrange(96) for _ in range(count)]
        chunks.append(SequenceChunk(slot, tokens, start, blocks, kind_of(count)))
    return StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)] for _ in chunks])


def launched(runner, stub, batch):
    stub.forget_launches()
    runner.execute(batch)
    return stub.launches()


def compared(runner, stub, count=24, make=random_batch):
    """Hold steps with patterns against the same without; return in how many one was used."""
    maker, draw = runner._backend._maker, random.Random(7)
    num_used = 0
    for _ in range(count):
        batch = make(draw)
        runner.execute(batch)  # memory of its inputs has grown by now
        before = maker.patterns.num_used
        by_pattern = launched(runner, stub, batch)
        after = maker.patterns.num_used
        patterns, maker.patterns = maker.patterns, Patterns(0)
        by_program = launched(runner, stub, batch)
        maker.patterns = patterns
        assert by_pattern == by_program
        num_used += after > before
    return num_used


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("more", [{}, BIASES], ids=["usual", "biases"])
def test_a_step_by_patterns_launches_what_the_program_would(open_runner, stub, more):
    runner = open_runner(**more)
    assert compared(runner, stub) > 10


def test_steps_that_are_filled_to_as_many_rows_are_launched_by_a_pattern(open_runner, stub):
    assert compared(open_runner(), stub, 12, filled_batch) > 6


def test_a_model_of_few_layers_is_gone_through(open_runner, stub):
    assert compared(open_runner(num_layers=4), stub, 6) == 0


def test_patterns_are_forgotten_when_memory_moves(open_runner, stub):
    runner = open_runner()
    assert compared(runner, stub) > 10
    patterns = runner._backend._maker.patterns
    runner.shrink(8 * BLOCKS_EACH, least_blocks=8)
    assert not patterns._found


def test_a_model_in_the_place_of_another_is_launched_by_its_patterns_at_once(
    open_runner, stub, tmp_path
):
    """All that launches differ in stays where it was: weights, caches, tables."""
    first = open_runner()
    assert compared(first, stub) > 10
    write_random_file(tmp_path / "other.zse", "int4", tuned="layers.", **SHAPE)
    second, moved_bytes = takes_over(first, tmp_path / "other.zse")
    assert moved_bytes > 0
    assert any(
        found and found.num_checked >= CHECKS
        for found in second._backend._maker.patterns._found.values()
    )
    assert compared(second, stub, 8) > 4
    second.close()


def test_layers_of_a_model_that_arrives_in_anothers_place_are_launched_as_they_come(
    open_runner, stub, tmp_path, monkeypatch
):
    first = open_runner(vectors="fp32")
    first.settle()
    assert compared(first, stub) > 10
    other = tmp_path / "other.zse"
    write_random_file(other, "int4", tuned="layers.5.", vectors="fp32", **SHAPE)
    may_read = hold_weights(monkeypatch, other)
    second, _ = takes_over(first, other)
    passes, maker, waited = second._backend._passes, second._backend._maker, []
    wait = passes._arrival.wait_for_group
    monkeypatch.setattr(
        passes._arrival, "wait_for_group",
        lambda group: (waited.append(len(stub.launches())), may_read.set(), wait(group)),
    )  # fmt: skip
    batch = random_batch(random.Random(7))
    assert passes.is_arriving
    used = maker.patterns.num_used
    stub.forget_launches()
    second.execute(batch)
    by_pattern = stub.launches()
    assert maker.patterns.num_used > used
    assert len(waited) == 1, "one group differs"
    assert 0 < waited[0] < len(by_pattern), "layers before it had been launched, none behind it"
    second.settle()
    maker.patterns = Patterns(0)
    by_program = launched(second, stub, batch)
    names = {launch.name for launch in by_program}  # what turns weights is launched once
    assert [launch for launch in by_pattern if launch.name in names] == by_program
    second.close()


# --- layers that are made up ----------------------------------------------------------------------


class Made:
    """A launcher that remembers, and the launches of made-up layers."""

    device = None

    def __init__(self):
        self.launches = []

    def launch(self, variant, grid, *arguments):
        self.launches.append((variant.key, grid, arguments))


class Form(NamedTuple):
    key: str


class Size:
    """As much of a step's shape as patterns look at."""

    def __init__(self, rows, prompt_rows):
        self.rows, self.prefill_rows, self.length_bytes = rows, prompt_rows, 4 * prompt_rows


def step(patterns, rows, arguments, *, keys=("a", "b"), prompt_rows=None, made=None):
    """Run a step whose layer ``i`` launches ``arguments(i, rows)``; return launches and layers."""
    made, gone_through = made or Made(), []
    made.launches.clear()
    launcher = RepeatingLauncher(made, patterns, Size(rows, prompt_rows or rows))
    keys_of = keys if callable(keys) else lambda _layer: keys
    for layer in range(patterns.num_layers):
        if launcher.begin_layer():
            continue
        gone_through.append(layer)
        for key in keys_of(layer):
            launcher.launch(Form(key), (rows, 1, 1), *arguments(layer, rows))
    launcher.launch(Form("head"), (1, 1, 1), 5)
    wanted = [
        (key, (rows, 1, 1), arguments(layer, rows))
        for layer in range(patterns.num_layers)
        for key in keys_of(layer)
    ]
    return made.launches == [*wanted, ("head", (1, 1, 1), (5,))], gone_through


def test_layers_that_differ_in_addresses_are_gone_through_until_they_are_known():
    patterns = Patterns(9)
    for number in range(12):
        is_right, gone_through = step(patterns, 10 + number, lambda i, n: (1000 + i, n * 64, 3.5))
        assert is_right
        assert gone_through == ([0, 1, 7, 8] if number > CHECKS else list(range(9)))


class Able(Made):
    """A launcher that repeats launches by itself."""

    def repeated(self, variants, places, rounds):
        def launch(calls, numbers):
            kind = Kind(0, tuple(places), list(rounds))
            for number in numbers:
                for variant, grid, arguments in kind.launches(number, calls):
                    self.launch(variant, grid, *arguments)

        return SimpleNamespace(launch=launch)


def test_a_pattern_of_a_device_launches_nothing_there_for_who_only_notes():
    patterns, device = Patterns(9), Able()
    for number in range(2 * CHECKS + 2):
        assert step(patterns, 10 + number, lambda i, n: (1000 + i, n * 64), made=device)[0]
    assert any(kind.repeated for kind in kinds_of(patterns))
    device.launches.clear()
    is_right, gone_through = step(patterns, 90, lambda i, n: (1000 + i, n * 64))
    assert is_right
    assert gone_through == [0, 1, 7, 8]
    assert not device.launches


def kinds_of(patterns):
    return [member.kind for found in patterns._found.values() for member in found.members.values()]


def test_layers_of_two_kinds_have_a_first_one_each():
    patterns = Patterns(16)

    def keys(layer):  # as where one layer of eight has its weights in other groups
        return ("norm", "other", "gate") if layer % 8 == 7 else ("norm", "usual")

    for number in range(12):
        is_right, gone_through = step(
            patterns, 10 + number, lambda i, n: (1000 + i, n * 64), keys=keys
        )
        assert is_right
        if number > CHECKS:
            # Of each run the last one is gone through for what it leaves, but not launched by it.
            assert gone_through == [0, 1, 6, 7, 14, 15]


def test_a_kind_that_comes_otherwise_is_gone_through():
    patterns = Patterns(24)

    def keys(layer, other="other"):
        return ("norm", other) if layer % 8 == 7 else ("norm", "usual")

    for number in range(8):
        step(patterns, 10 + number, lambda i, n: (1000 + i, n), keys=keys)
    is_right, gone_through = step(
        patterns, 40, lambda i, n: (1000 + i, n), keys=lambda layer: keys(layer, "wide")
    )
    assert is_right
    assert {7, 15}.issubset(gone_through)
    assert len(gone_through) < 12


def test_what_depends_on_the_layer_and_on_the_step_is_never_guessed():
    patterns = Patterns(9)
    for number in range(12):
        is_right, gone_through = step(patterns, 10 + number, lambda i, n: (1000 + i * n,))
        assert is_right
        assert gone_through == list(range(9))


def test_layers_that_take_turns_are_never_guessed():
    patterns = Patterns(9)

    def turns(layer, rows):
        return (rows * 512,) if layer % 2 else (rows * 1024,)

    for number in range(12):
        is_right, gone_through = step(patterns, 10 + number, turns)
        assert is_right
        assert gone_through == list(range(9))


def test_steps_of_one_size_alone_prove_nothing():
    patterns = Patterns(9)
    for _ in range(12):
        _, gone_through = step(patterns, 10, lambda i, n: (1000 + i, n))
        assert gone_through == list(range(9))


def test_steps_of_as_many_rows_prove_something_for_others_of_as_many():
    """As pieces of prompts do, which fill steps to the same number beside more and more answers."""
    patterns = Patterns(9)

    def of_rows(layer, rows):
        return 1000 + layer * rows, 64

    for number in range(8):
        is_right, gone_through = step(patterns, 1152, of_rows, prompt_rows=1000 - number)
        assert is_right
        assert (len(gone_through) < 9) == (number > CHECKS)
    for rows in (1024, 1280, 1152):  # by which it is found that these numbers are the step's own
        assert step(patterns, rows, of_rows, prompt_rows=700) == (True, list(range(9)))


def test_other_kernels_are_another_pattern():
    patterns = Patterns(9)
    for number in range(8):
        step(patterns, 10 + number, lambda i, n: (i, n))
    _, gone_through = step(patterns, 40, lambda i, n: (i, n), keys=("a", "c"))
    assert gone_through == list(range(9))


def test_a_pattern_is_held_against_a_whole_step_now_and_then(monkeypatch):
    monkeypatch.setattr("zse.backends.gpu.patterns.USES_BETWEEN_CHECKS", 5)
    patterns = Patterns(9)
    for number in range(10):
        step(patterns, 10 + number, lambda i, n: (i, n))
    results = [step(patterns, 30 + number, lambda i, n: (i + 7, n)) for number in range(12)]
    last_wrong = max(number for number, (is_right, _) in enumerate(results) if not is_right)
    assert last_wrong < 5  # the addresses had changed without a word: it is found, and for good
