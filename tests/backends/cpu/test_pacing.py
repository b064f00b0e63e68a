"""A CPU with less memory than the model: the same answers, and no more pages than allowed."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from mapped_files import mapped_bytes
from random_files import write_random_file

from zse.backends.cpu.pacing import PacedWeights
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import DeviceError, SourceChangedError, StoreError
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.stream.fit import plan_window
from zse.stream.source import LocalSource
from zse.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = {
    "num_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 64,
    "vocab_size": 300,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paced") / "model.zse"
    write_random_file(path, "int8", **NUMBERS)
    return path


def opened(path: Path, **options: Any) -> ModelRunner:
    return load_runner(path, load_options(device="cpu", num_blocks=32, threads=2, **options))


def answers(runner: ModelRunner, seed: int = 0) -> list[Any]:
    source = random.Random(seed)
    found = []
    for count in (1, 40, 1, 3, 1, 300):
        tokens = [source.randrange(3, 300) for _ in range(count)]
        chunk = SequenceChunk(0, tokens, 0, range(12), kind_of(count))
        row = SamplingRow(temperature=0.0, step=0, logprobs=5)
        found.append(runner.execute(StepBatch(chunks=[chunk], sampling=[[row]])))
    return found


@pytest.mark.parametrize(("share", "slots"), [(0.5, 2), (0.7, 3), (0.4, 2)])
def test_answers_are_the_same_in_less_memory_and_the_rest_is_not_mapped(path, share, slots):
    size = path.stat().st_size
    with closing(opened(path)) as whole:
        expected = answers(whole)
        assert mapped_bytes(path) > 0.8 * size
    with closing(opened(path, ram_gib=share * size / GIB, stream_slots=slots)) as runner:
        for _ in range(2):
            assert answers(runner) == expected
            # What is read around a fault, or while a pass ends, is a few pages more.
            assert mapped_bytes(path) <= share * size + MIB // 4
        plan = runner._backend._paced.plan
        assert plan.streamed
        assert plan.total_bytes <= share * size
        logits = runner.logits([5, 6, 7])
        assert len(list(logits)) == 3


def test_memory_for_less_than_two_layers_is_refused_with_what_is_needed(path):
    with pytest.raises(DeviceError, match="streaming needs at least") as caught:
        opened(path, ram_gib=0.1 * path.stat().st_size / GIB)
    assert "--ram-gib" in caught.value.hint


def test_all_stays_where_it_may_or_where_streaming_is_off(path):
    size = path.stat().st_size
    for options in ({"ram_gib": 2 * size / GIB}, {"ram_gib": 0.5 * size / GIB, "stream": "off"}):
        with closing(opened(path, **options)) as runner:
            assert runner._backend._paced is None


def test_layers_stream_where_all_could_stay_if_that_is_asked_for(path):
    with closing(opened(path)) as whole:
        expected = answers(whole)
    with closing(opened(path, stream="on")) as runner:
        assert len(runner._backend._paced.plan.streamed) == 2
        assert answers(runner) == expected


def test_a_file_that_was_written_to_is_not_computed_with(path, tmp_path):
    own = tmp_path / "own.zse"
    own.write_bytes(path.read_bytes())
    with closing(opened(own, ram_gib=0.5 * own.stat().st_size / GIB)) as runner:
        answers(runner)
        with own.open("r+b") as file:
            file.write(b"ZSE")
        with pytest.raises(SourceChangedError, match="was written to"):
            answers(runner)


def paced(path: Path, reader: ZSEReader, **options: Any) -> PacedWeights:
    header = reader.header.loaded()
    plan = plan_window(header, path.stat().st_size // 2)
    return PacedWeights(reader, LocalSource(path), plan, **options)


def test_a_pass_that_broke_off_is_passed_over(path):
    with ZSEReader(path) as reader, closing(paced(path, reader)) as weights:
        count = len(weights.plan.streamed)
        source = random.Random(3)
        for _ in range(20):
            for number in range(source.randrange(1, count + 1)):
                weights.enter(number)
                if number + 1 < count or source.random() < 0.5:
                    weights.leave(number)
        weights.enter(0)


def test_a_layer_that_never_comes_is_an_error_that_names_it(path, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(PacedWeights, "_bring", lambda *_: held.wait(60))
    with ZSEReader(path) as reader:
        weights = paced(path, reader, stall_seconds=0.05)
        with pytest.raises(StoreError, match=r"layers\.\d+ of .* has not come"):
            weights.enter(0)
        with pytest.raises(StoreError, match=r"layers\.\d+ of .* has not come"):
            weights.enter(1)  # over the one that a pass before waited for
        held.set()
        weights.close()
