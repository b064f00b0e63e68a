"""What a GPU is made ready for while nobody asks anything."""

from __future__ import annotations

import contextlib
import random

import pytest
import stub_libcuda
from random_files import write_random_file
from sample_packs import write_stub_pack

from zse.backends.gpu.graphs import GraphKey
from zse.backends.gpu.idle import keys_to_capture, steps_to_rehearse
from zse.backends.gpu.patterns import Patterns
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.library import Driver
from zse.errors import DeviceError
from zse.kernels.lm_head_sample.arrays import SamplingKind
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import load_runner
from zse.options import load_options

BLOCKS_EACH = 40
GREEDY, DRAWN = SamplingKind(), SamplingKind(random=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("idle")
    write_random_file(
        folder / "model.zse",
        "int4",
        hidden_size=128,
        intermediate_size=256,
        num_heads=2,
        num_kv_heads=1,
        head_dim=64,
        vocab_size=96,
        max_position=2048,
        num_layers=8,
    )
    return folder / "model.zse", write_stub_pack(folder / "sm_90.zkp")


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setenv("ZSE_STUB_TOTAL", str(4 << 30))
    path, real_open = stub_libcuda.build(), Gpu.open
    monkeypatch.setattr(Gpu, "open", lambda ordinal: real_open(ordinal, driver=Driver(str(path))))
    return stub_libcuda.Stub(path)


@pytest.fixture
def runner(files, stub):
    model, pack = files
    options = load_options(
        device="cuda",
        kernels=str(pack),
        max_sequences=16,
        max_batch_tokens=1024,
        num_blocks=16 * BLOCKS_EACH,
    )
    with contextlib.closing(load_runner(model, options)) as opened:
        yield opened


def batch(*counts, seed=1):
    """Return a step of prompts of so many tokens, and of answers where that is 1."""
    draw, chunks = random.Random(seed), []
    for slot, count in enumerate(sorted(counts)):
        start = 0 if count > 1 else draw.randrange(40, 900)
        tokens = [draw.randrange(96) for _ in range(count)]
        blocks = list(range(slot * BLOCKS_EACH, (slot + 1) * BLOCKS_EACH))
        chunks.append(SequenceChunk(slot, tokens, start, blocks, kind_of(count)))
    return StepBatch(chunks=chunks, sampling=[[SamplingRow(temperature=0.0)] for _ in chunks])


def answered(runner, prompt):
    """Have a prompt read and an answer begun; the second step of it is captured."""
    for counts in ([prompt], [1], [1]):
        runner.execute(batch(*counts))


def prepare_all(runner):
    count = 0
    while runner.prepare_idle():
        count += 1
    return count


def num_used(runner):
    patterns = runner._backend._maker.patterns
    return sum(found.num_used for found in patterns._found.values() if found)


def test_steps_of_all_numbers_of_answers_are_captured_before_they_come(runner):
    answered(runner, 9)
    graphs = runner._backend._graphs
    assert prepare_all(runner) > 0
    before = set(graphs)
    assert {key.rows for key in before} == {1, 2, 4, 8, 16}
    for rows in (2, 3, 7, 16):
        runner.execute(batch(*[1] * rows))
    assert set(graphs) == before
    assert prepare_all(runner) == 0


def launched(runner, stub, step):
    stub.forget_launches()
    runner.execute(step)
    return stub.launches()


def launched_by_the_program(runner, stub, step):
    maker = runner._backend._maker
    patterns, maker.patterns = maker.patterns, Patterns(0)
    try:
        return launched(runner, stub, step)
    finally:
        maker.patterns = patterns


def random_counts(draw):
    """Return tokens of one or two prompts, and of some answers, that fit into a step."""
    prompts = [draw.randint(2, 480) for _ in range(draw.randint(1, 2))]
    return [*prompts, *[1] * draw.randint(0, 13)]


def test_the_first_step_with_prompts_behind_a_pause_is_launched_by_a_pattern(runner, stub):
    runner.execute(batch(300))
    prepare_all(runner)
    for counts in ((1, 1, 411), (1, 288, 290), (1,) * 6 + (702,), (512, 331)):
        step = batch(*counts)
        runner.execute(step)  # memory of its inputs has grown by now
        before = num_used(runner)
        by_pattern = launched(runner, stub, step)
        assert num_used(runner) > before
        assert launched_by_the_program(runner, stub, step) == by_pattern


@pytest.mark.parametrize("seed", range(2))
def test_steps_launch_the_same_however_often_pauses_come_between(runner, stub, seed):
    draw = random.Random(seed)
    for number in range(24):
        step = batch(*random_counts(draw), seed=number)
        runner.execute(step)
        by_pattern = launched(runner, stub, step)
        assert launched_by_the_program(runner, stub, step) == by_pattern
        for _ in range(draw.choice([0, 0, 1, 9])):
            runner.prepare_idle()


def test_a_pause_launches_nothing_that_steps_before_have_left_patterns_of(runner, stub):
    draw = random.Random(3)
    for number in range(40):
        runner.execute(batch(*random_counts(draw), seed=number))
    found = [pattern for pattern in runner._backend._maker.patterns._found.values() if pattern]
    kinds = [member.kind for pattern in found for member in pattern.members.values()]
    assert any(kind.repeated for kind in kinds)
    stub.forget_launches()
    before = num_used(runner)
    assert prepare_all(runner) > 10
    assert num_used(runner) > before  # rehearsals met them
    assert not stub.launches()


def test_nothing_of_a_step_that_is_rehearsed_is_launched(runner, stub):
    runner.execute(batch(300))
    stub.forget_launches()
    while len(runner._backend._graphs) < 2 and runner.prepare_idle():
        assert not stub.launches()
    assert len(runner._backend._maker.patterns.rehearsed) > 5


def test_a_server_of_short_prompts_is_not_made_ready_for_long_ones(runner):
    runner.execute(batch(20))
    prepare_all(runner)
    assert not runner._backend._maker.patterns.rehearsed
    runner.execute(batch(300))
    assert prepare_all(runner) > 0
    assert runner._backend._maker.patterns.rehearsed


def test_what_moved_is_prepared_again(runner):
    answered(runner, 300)
    first = prepare_all(runner)
    runner.shrink(8 * BLOCKS_EACH, least_blocks=8)
    answered(runner, 300)
    assert prepare_all(runner) == first > 0


def test_what_cannot_be_prepared_harms_no_step_and_is_not_tried_again(runner, monkeypatch):
    answered(runner, 300)
    tried = []

    def short(*_):
        tried.append(1)
        raise DeviceError("no memory")

    monkeypatch.setattr(runner._backend._maker, "capture", short)
    prepare_all(runner)
    monkeypatch.undo()
    assert not runner.prepare_idle()
    assert len(tried) == 1
    runner.execute(batch(1, 1, 1))
    assert len(runner._backend._graphs) == 2


def test_steps_are_captured_for_the_ways_in_which_tokens_were_chosen():
    captured = [
        GraphKey("decode", 1, GREEDY),
        GraphKey("decode", 4, DRAWN),
        GraphKey("verify", 8, SamplingKind(logprobs=True)),
        GraphKey("decode", 8, SamplingKind(masked=True)),
        GraphKey("decode", 8, SamplingKind(adjusted=True), entry_room=4096),
    ]
    wanted = [(key.rows, key.sampling) for key in keys_to_capture(captured, 9)]
    drawn = [(2, DRAWN), (8, DRAWN), (16, DRAWN)]
    assert sorted(wanted, key=str) == sorted(
        [*drawn, *((rows, GREEDY) for rows in (2, 4, 8, 16))], key=str
    )
    assert not list(keys_to_capture([], 256))
    assert max(key.rows for key in keys_to_capture(captured, 5000)) == 256


def test_steps_to_learn_by_fit_into_a_step_and_differ_in_rows():
    options = load_options(max_sequences=50, max_batch_tokens=1024).batch
    steps = list(steps_to_rehearse(Patterns(28), options))
    assert all(answers < 50 and answers + rows <= 1024 for answers, rows in steps)
    assert [rows for answers, rows in steps if answers == 5] == [300, 512, 720, 880, 1000]
    assert not list(steps_to_rehearse(Patterns(3), options))
