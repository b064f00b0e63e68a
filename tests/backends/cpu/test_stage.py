"""A model cut into stages gives the tokens of the whole one, bit for bit."""

from __future__ import annotations

import itertools
import random
from array import array

import pytest
from model_pairs import make_pair
from random_steps import random_steps

from zse.backends.cpu.stage import CPUStage
from zse.backends.types import SequenceChunk, StepBatch
from zse.errors import EngineError, UnsupportedModelError, UsageError
from zse.format import ZSEReader
from zse.models.runner import load_runner, spec_of
from zse.models.stage import stage_of
from zse.options import load_options

__all__ = ["make_pair"]
OPTIONS = load_options(
    device="cpu", threads=1, num_blocks=64, block_size=8, max_sequences=8, prefix_cache=False
)


class Stages:
    """A model as a chain of stages in one process."""

    def __init__(self, path, cuts):
        self.reader = ZSEReader(path)
        spec = spec_of(self.reader)
        ends = [0, *cuts, len(spec.layers)]
        self.parts = [
            CPUStage(self.reader, stage_of(spec, first, end), OPTIONS)
            for first, end in itertools.pairwise(ends)
        ]

    def compute(self, batch):
        stream = None
        for part in self.parts:
            stream = part.compute(batch, stream)
        return stream

    def close(self):
        for part in self.parts:
            part.close()
        self.reader.close()


@pytest.mark.parametrize(
    ("family", "scheme", "cuts"),
    [("llama", "int4", [1]), ("gemma3", "int8", [1]), ("mixtral", "int4", [1])],
    ids=str,
)
def test_stages_choose_the_tokens_of_the_whole_model(make_pair, family, scheme, cuts):
    changes = {} if family == "gemma3" else {"num_hidden_layers": 4}
    path = make_pair(family, scheme, **changes).path
    runner, stages = load_runner(path, OPTIONS), Stages(path, cuts)
    try:
        for batch in random_steps(random.Random(4), runner.vocab_size):
            assert stages.compute(batch) == runner.execute(batch)
    finally:
        stages.close()
        runner.close()


def test_a_stage_maps_only_what_its_layers_read(make_pair):
    path = make_pair("llama", "int4", num_hidden_layers=4).path
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
        stage = stage_of(spec, 1, 3)
        part = CPUStage(reader, stage, OPTIONS)
        names = {name for name, _ in part._weights._spans}
        assert {name.split(".")[1] for name in names} == {"1", "2"}
        assert names == stage.weight_names
        assert part.memory_bytes()["weights"] < sum(
            one.length_bytes for one in reader.header.tensors
        )
        part.close()


def test_keys_and_values_that_are_carried_over_lead_to_the_same_tokens(make_pair):
    """What a standby has: the blocks of the one that is gone, and the steps that come."""
    path = make_pair("llama", "int4", num_hidden_layers=4).path
    stages, standby = Stages(path, [2]), Stages(path, [2])
    try:
        steps = list(random_steps(random.Random(9), 64))
        for batch in steps[:6]:
            stages.compute(batch)
        used = [0, 1, 2, 5, 16, 17, 18, 32, 33]
        for old, new in zip(stages.parts, standby.parts, strict=True):
            new.write_kv(range(64), memoryview(old.read_kv(range(64))))
            assert new.read_kv(used) == old.read_kv(used)
        for batch in steps[6:]:
            assert standby.compute(batch) == stages.compute(batch)
    finally:
        stages.close()
        standby.close()


def test_a_stream_of_other_rows_than_the_step_is_refused(make_pair):
    stages = Stages(make_pair("llama", "int4", num_hidden_layers=4).path, [2])
    try:
        batch = StepBatch(chunks=[SequenceChunk(0, [1, 2], 0, [0], "prefill")], sampling=[()])
        with pytest.raises(EngineError, match="no stream"):
            stages.parts[1].compute(batch)
        with pytest.raises(EngineError, match="2 rows"):
            stages.parts[1].compute(batch, memoryview(array("f", [0.0] * 3)))
        with pytest.raises(EngineError, match="blocks 0 to 63"):
            stages.parts[1].write_kv([64], memoryview(stages.parts[1].read_kv([0])))
    finally:
        stages.close()


def test_layers_that_need_more_than_the_stream_are_not_divided(make_pair):
    with ZSEReader(make_pair("llama", "int4", num_hidden_layers=4).path) as reader:
        spec = spec_of(reader)
        with pytest.raises(UsageError, match="the model has 4"):
            stage_of(spec, 2, 5)
    with (
        ZSEReader(make_pair("qwen3_next", "int8").path) as reader,
        pytest.raises(UnsupportedModelError, match="a state beside"),
    ):
        stage_of(spec_of(reader), 0, 1)
