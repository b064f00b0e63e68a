"""Layers on a GPU of Triton's interpreter whose stream comes from the host: a node's stage."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from forked_ranks import run_ranks
from interpreted_runner import open_runner
from model_pairs import make_pair
from rank_mesh import Mesh, Wires
from shared_interpreted_gpu import SharedInterpretedGpu
from tiny_shape import TINY

from zse.backends.gpu.host_flow import HostFlow
from zse.backends.gpu.stage import AloneLink, GPUStage
from zse.backends.ranks import HostEdges, RankPart
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import DeviceError, EngineError
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.runner import spec_of
from zse.models.share import share_of
from zse.models.stage import stage_of
from zse.models.stage_share import stage_share, whole_share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["make_pair"]
WIDE_HEADS = {"head_dim": 256, "max_position_embeddings": 256}
SHARED = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256}
STEPS = [[5, 17, 70, 33], [9], [3]]


def batches() -> list[StepBatch]:
    start, found = 0, []
    for tokens in STEPS:
        chunk = SequenceChunk(0, tokens, start, (2, 5), kind_of(len(tokens)))
        found.append(StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]]))
        start += len(tokens)
    return found


def opened(path: Path, first: int, end: int) -> GPUStage:
    with ZSEReader(path) as reader:
        spec = spec_of(reader)
    share = stage_share(whole_share(spec), first, end)
    part = RankPart(link=AloneLink(), spec=share.spec, cuts=share.cuts, edges=HostEdges())
    backend: Any = open_runner(path, part=part)._backend
    library: Any = SimpleNamespace()
    return GPUStage(stage_of(spec, first, end), backend, library, lambda: None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "scheme", "shape"), [("qwen2", "int8", {}), ("gemma2", "int4", WIDE_HEADS)]
)
def test_stages_of_nodes_answer_as_one_gpu_does_and_take_each_others_blocks(
    make_pair: Callable[..., Any], family: str, scheme: str, shape: dict[str, int]
) -> None:
    path = make_pair(family, scheme, **{**TINY, **shape}).path
    with closing(open_runner(path)) as runner:
        expected = [runner.execute(batch) for batch in batches()]
    first, last, standby = opened(path, 0, 1), opened(path, 1, 2), opened(path, 1, 2)
    assert [last.compute(one, first.compute(one)) for one in batches()[:2]] == expected[:2]
    assert standby.layout == last.layout
    standby.write_kv([2, 5], memoryview(last.read_kv([2, 5])))
    assert standby.compute(batches()[2], first.compute(batches()[2])) == expected[2]
    with pytest.raises(EngineError, match="layer 1 got no stream for 1 rows of 128"):
        last.compute(batches()[1])
    with pytest.raises(EngineError, match="blocks came in 3 bytes"):
        last.write_kv([0], memoryview(b"123"))
    for stage in (first, last, standby):
        stage.close()


def opened_rank(path: Path, link: Mesh, first: int, end: int) -> GPUStage:
    with ZSEReader(path) as reader:
        spec, tensors = spec_of(reader), reader.header.loaded().tensors
    share = stage_share(share_of(spec, tensors, link.share), first, end)
    part = RankPart(link=link, spec=share.spec, cuts=share.cuts, edges=HostEdges())  # type: ignore[arg-type]
    backend: Any = open_runner(path, part=part)._backend
    library: Any = SimpleNamespace()
    stage = replace(stage_of(spec, first, end), model=share.spec)
    return GPUStage(stage, backend, library, lambda: None)


@pytest.mark.nightly
def test_stages_that_two_ranks_share_answer_as_one_gpu_does(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    path = make_pair("qwen2", "int8", **{**TINY, **SHARED}).path
    with closing(open_runner(path)) as runner:
        expected = [runner.execute(batch)[0][0].token_id for batch in batches()]

    def work(rank: int, wires: Wires) -> None:
        link = Mesh(rank, wires.memory, wires.sockets[rank])
        first, last = opened_rank(path, link, 0, 1), opened_rank(path, link, 1, 2)
        answers = [last.compute(batch, first.compute(batch)) for batch in batches()]
        tokens = [answer[0][0].token_id for answer in answers]
        (tmp_path / f"{rank}.json").write_text(json.dumps(tokens))

    with closing(Wires(2)) as wires:
        run_ranks([partial(work, rank, wires) for rank in range(2)])
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def test_rows_of_the_host_come_before_a_step_and_lie_there_behind_it() -> None:
    gpu = SharedInterpretedGpu()
    stream, device = gpu.create_stream(), gpu.allocate(4 * 16 * 8)
    flow = HostFlow(gpu, stream, hidden=16, most_rows=8)
    rows = memoryview(bytearray(range(64)) * 2).cast("f")
    flow.put(rows)
    flow.receive(device.address, 2)
    flow.put(memoryview(bytearray(128)).cast("f"))  # the next step's do not change this one's
    flow.send(device.address, 2)
    assert flow.passed(1).wait() == [()]
    assert flow.taken(2) == rows


def test_a_device_that_is_alone_has_nobody_to_give_anything_to() -> None:
    link = AloneLink()
    assert link.least([3, 1]) == [3, 1]
    link.check()
    with pytest.raises(DeviceError, match="there are none"):
        link.exchange(b"")
    with pytest.raises(DeviceError, match="there are none"):
        link.memory(1)
