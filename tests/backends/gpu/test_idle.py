"""What a GPU is made ready for while nobody asks anything."""

from __future__ import annotations

import contextlib
import random

import pytest
import stub_libcuda
from random_files import write_random_file
from sample_packs import write_stub_pack

from zse.backends.gpu.graphs import GraphKey
from zse.backends.gpu.idle import keys_to_capture
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
