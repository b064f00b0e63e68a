"""Stages whose layers two processes share on GPUs: one each, or both on one where there is no other."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing

import pytest

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.device.cuda.info import count_devices
from zse.device.cuda.library import Driver
from zse.engine.opening import open_file
from zse.engine.ranks.opening import load_ranked_runner
from zse.errors import RankError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.mesh.devices import NodeDevices
from zse.mesh.messages import AskOpen
from zse.mesh.opening import digest_of, opener, shared_options
from zse.option import with_values
from zse.options import load_options
from zse.settings import load_settings

pytestmark = pytest.mark.gpu
LOAD = {"device": "cpu", "num_blocks": 64, "block_size": 32, "max_sequences": 2,
        "max_context": 256, "deterministic": True}  # fmt: skip
PROMPT, NUM_TOKENS, TAKEN_OVER = [5, 6, 7, 9, 11, 4, 8], 12, 6


def batch(tokens, start):
    chunk = SequenceChunk(0, tokens, start, [3, 1, 6], kind_of(len(tokens)))
    return StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]])


def written(compute):
    """Return the tokens that follow the prompt, one step after another."""
    tokens, start, found = PROMPT, 0, []
    while len(found) < NUM_TOKENS:
        token = compute(batch(tokens, start))[0][0].token_id
        start += len(tokens)
        tokens = [token]
        found.append(token)
    return found


def compute_on_and_on(stage):
    while True:
        stage.compute(batch([5], 0))


def test_shared_stages_write_what_two_ranks_do_and_a_standby_goes_on():
    settings = load_settings()
    ordinals = (0, 1) if count_devices(Driver()) > 1 else (0, 0)
    names = tuple(f"cuda:{ordinal}" for ordinal in ordinals)
    with open_file("tiny", load_options(**LOAD), settings) as reader:
        digest, path, layers = digest_of(reader), reader.path, 4
    options = with_values(
        load_options(**LOAD),
        {"device": "cuda", "tensor_parallel": 2, "gpus": ",".join(map(str, ordinals)),
         "kernels": settings.serve.load.device.kernels},
    )  # fmt: skip
    with closing(load_ranked_runner(path, options, cache_dir=None)) as runner:
        expected = written(runner.execute)
    shared = shared_options(load_options(**LOAD), LOAD["num_blocks"])
    open_stage = opener(settings, devices=NodeDevices(names=names, shares=(2,)))

    def opened(first, end):
        return stack.enter_context(
            closing(open_stage(AskOpen("tiny", digest, first, end, shared, "", 2)))
        )

    with ExitStack() as stack:
        first, last, standby = opened(0, 2), opened(2, layers), opened(2, layers)
        steps = []

        def compute(one):
            at_work = last
            if len(steps) >= TAKEN_OVER:
                at_work = standby
            if len(steps) == TAKEN_OVER:
                standby.write_kv([3, 1, 6], memoryview(last.read_kv([3, 1, 6])))
            steps.append(one)
            return at_work.compute(one, first.compute(one))

        assert written(compute) == expected
        first._group._ranks.processes[0].send_signal(signal.SIGKILL)
        with pytest.raises(RankError, match="was ended by SIGKILL"):
            compute_on_and_on(first)
