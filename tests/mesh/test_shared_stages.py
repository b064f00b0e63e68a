"""Nodes whose layers several processes share: the same text, whichever of them is killed."""

from __future__ import annotations

import signal
from contextlib import ExitStack, closing, suppress
from os import kill
from pathlib import Path
from types import SimpleNamespace

import pytest
from child_processes import children_of
from forked_nodes import ForkedNodes
from mesh_requests import all_ready, requests_of, until

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.opening import open_file
from zse.errors import EngineError, MeshError, RankError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.mesh import stage_memory
from zse.mesh.devices import NodeDevices
from zse.mesh.messages import AskOpen, NodeState, decode
from zse.mesh.node import Node, NodeSetup
from zse.mesh.opening import digest_of, kind_of, opener, shared_options
from zse.mesh.peers import Peer, Peers
from zse.mesh.worker import Worker
from zse.options import load_options
from zse.settings import load_settings

SECRET = "a secret of processes"
EXACT = {"exact_activations": True}
"""Sums of two processes are made in another order; nothing is rounded behind them."""
TWO = NodeDevices(names=("cpu", "cpu"), shares=(1, 2))


def is_running(pid):
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def nodes_of(mesh):
    return {duty.node for duty in mesh.front.duties}


def test_a_killed_rank_and_a_killed_node_of_two_by_two_cost_no_token(make_mesh, alone, caplog):
    requests = requests_of(7)
    with ForkedNodes(2, SECRET, extra=["2"]) as nodes:
        mesh = make_mesh(0)
        mesh.forked = nodes
        mesh.join_processes(**EXACT)
        answers = mesh.answers
        assert [duty.devices for duty in mesh.front.duties] == [2, 2]
        for prompt, params in requests:
            answers.ask(prompt, **params)
        answers.run(steps=10)
        until(lambda: all_ready(mesh))
        answers.run(steps=3)
        ranks = children_of(nodes.pids["n1"])
        assert ranks  # of its own stage, and of the one it stands by for
        for rank in ranks:
            with suppress(ProcessLookupError):
                kill(rank, signal.SIGKILL)
        until(lambda: mesh.front.num_failovers)
        answers.run(steps=4)
        until(lambda: nodes_of(mesh) == {"n0", "n1"} and all_ready(mesh))
        assert "n1 is lost" in caplog.text
        answers.run(steps=3)  # its ranks were started again, and it computes a stage
        ranks = children_of(nodes.pids["n0"])
        nodes.signal("n0", signal.SIGKILL)
        assert answers.run() == alone(requests, **EXACT)
        assert mesh.front.num_failovers >= 2
        assert nodes_of(mesh) == {"n1"}
        until(lambda: not any(map(is_running, ranks)))  # they end with their node


@pytest.fixture(scope="module")
def ask():
    """A question for a stage of the built-in model that so many devices share."""
    options = load_options(device="cpu", num_blocks=8, block_size=8, max_sequences=2,
                           max_context=64, max_batch_tokens=32, **EXACT)  # fmt: skip
    with open_file("tiny", options, load_settings()) as reader:
        digest = digest_of(reader)
    shared = shared_options(options, 8)

    def of(first, end, devices=2, kind=""):
        return AskOpen("tiny", digest, first, end, shared, kind, devices)

    return of


@pytest.fixture(scope="module")
def open_stage():
    return opener(load_settings(), threads=1, devices=TWO)


def batch(num_tokens, start=0):
    chunk = SequenceChunk(0, list(range(5, 5 + num_tokens)), start, [3, 1, 6], "prefill")
    return StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]])


def test_a_shared_stage_goes_on_from_the_blocks_of_another_one(ask, open_stage, monkeypatch):
    monkeypatch.setattr(stage_memory, "_IMAGE_BYTES", 1)  # a block at a time
    with ExitStack() as opened:
        first = opened.enter_context(closing(open_stage(ask(0, 1, devices=1))))
        last = opened.enter_context(closing(open_stage(ask(1, 4))))
        standby = opened.enter_context(closing(open_stage(ask(1, 4, kind=kind_of(last)))))
        last.compute(batch(20), first.compute(batch(20)))
        image = last.read_kv([3, 1, 6])
        assert len(image) == 3 * last.block_bytes
        standby.write_kv([3, 1, 6], memoryview(image))
        assert standby.read_kv([6, 3]) == last.read_kv([6, 3])
        rows = memoryview(bytes(first.compute(batch(2, 20)))).cast("f")
        assert standby.compute(batch(2, 20), rows) == last.compute(batch(2, 20), rows)


def test_what_does_not_fit_a_shared_stage_is_refused_and_it_goes_on(ask, open_stage):
    with closing(open_stage(ask(0, 1))) as stage:
        expected = bytes(stage.compute(batch(3)))
        with pytest.raises(EngineError, match="a step of 100 rows came"):
            stage.compute(batch(100))
        with pytest.raises(EngineError, match="a stream of 4 numbers for 3 rows"):
            stage.compute(batch(3), memoryview(bytearray(16)).cast("f"))
        with pytest.raises(EngineError, match="it needs 4"):
            stage.compute(batch(30))  # of 3 blocks, 24 tokens
        with pytest.raises(EngineError, match="1 blocks came in 3 bytes"):
            stage.write_kv([1], memoryview(b"123"))
        with pytest.raises(EngineError, match="of blocks 0 to 7"):
            stage.write_kv([9], memoryview(bytes(stage.block_bytes)))
        assert bytes(stage.compute(batch(3))) == expected


def test_a_stage_of_two_devices_and_one_of_one_do_not_stand_by_for_each_other(ask, open_stage):
    with closing(open_stage(ask(0, 1, devices=1))) as stage:
        kind = kind_of(stage)
    with pytest.raises(MeshError, match="this node computes as 2 of "):
        open_stage(ask(0, 1, kind=kind))
    with pytest.raises(MeshError, match="3 devices share were asked for; here 1 or 2 of cpu, cpu"):
        open_stage(ask(0, 1, devices=3))


def test_a_stage_whose_rank_is_stopped_is_lost_and_says_so_once(ask, open_stage):
    with closing(open_stage(ask(0, 1))) as stage:
        told = []
        stage.when_lost(told.append)
        stage._group._ranks.processes[0].send_signal(signal.SIGSTOP)
        with pytest.raises(RankError, match="rank 1 \\(cpu\\) was stopped"):
            stage.compute(batch(3))
        until(lambda: told)
        with pytest.raises(RankError):
            stage.read_kv([1])
    assert len(told) == 1


def test_a_node_that_loses_a_rank_leaves_its_front_once_and_says_why():
    reason = "rank 1 (cuda:1) was ended by SIGKILL"
    node = Node(NodeSetup(name="n", secret=b"x"), lambda: None, lambda _: None)
    node._worker = Worker("n", SimpleNamespace(silent=lambda _: [], moving=lambda _: [],
                                               late_seconds=0.0), lambda _: None)  # fmt: skip
    sent, closed = [], []
    front = SimpleNamespace(is_closed=False, send=sent.append, close=closed.append)
    node._fall(front, reason)
    [frame] = sent
    said = decode(frame.head, NodeState)
    assert (said.problem, closed) == (reason, [reason])
    front.is_closed = True  # of the other stage's ranks, which were lost, too
    node._fall(front, reason)
    assert len(sent) == 1
    changes = []
    peers = Peers(b"x", lambda _: None, lambda *told: changes.append(told))
    link = SimpleNamespace(peer=SimpleNamespace(node="n"))
    peers.by_name["n"] = Peer("nowhere:1", link)
    peers._take(link, frame)
    peers._ended(link, "the peer hung up")
    assert changes == [("n", False, reason)]
    node._listener.close()
