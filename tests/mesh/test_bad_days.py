"""Each thing that can be wrong with a mesh is said in words, and nothing hangs."""

from __future__ import annotations

import errno
import random
import socket

import msgspec
import pytest
from mesh_requests import all_ready, requests_of, until

from zse.errors import MeshError
from zse.mesh.batches import WireBatch, WireChunk, WireRow, read_batch, write_batch
from zse.mesh.codecs import Codec
from zse.mesh.finding import Finder
from zse.mesh.handshake import Introduction, caller_of
from zse.mesh.messages import AskFacts, AskOpen, Done, Facts, Order, StepHead, decode, decode_ask
from zse.mesh.node import Node, NodeSetup
from zse.mesh.peers import Peers
from zse.mesh.surveying import survey


def test_a_node_of_another_secret_is_named_with_what_to_do(make_mesh):
    mesh = make_mesh(1)
    other = NodeSetup(name="other", secret=b"another secret of 16")
    mesh.nodes["other"] = Node(other, lambda: None, lambda _: None).start()
    with pytest.raises(MeshError, match=r"1 of 2 nodes are there: .*does not know the secret"):
        mesh.join(wait_seconds=0.2)


def test_a_moment_without_descriptors_does_not_end_a_node(make_mesh, monkeypatch):
    class FullAtFirst(socket.socket):
        is_full = True

        def accept(self):
            if self.is_full:
                self.is_full = False
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    def listen(address, **_):
        listener = FullAtFirst()
        listener.bind(address)
        listener.listen()
        return listener

    monkeypatch.setattr("zse.mesh.node.socket.create_server", listen)
    mesh = make_mesh(1)
    call = caller_of(mesh.nodes["n0"]._setup.secret, Introduction("", "survey"))
    call(mesh.nodes["n0"].address, 5.0).socket.close()
    mesh.nodes["n0"].close()
    mesh.nodes["n0"].wait()


def test_a_node_of_another_version_is_refused(make_mesh):
    mesh = make_mesh(1)
    mesh.nodes["n0"]._own = Introduction("n0", "node", "0.0.1")
    with pytest.raises(MeshError, match=r"0 of 1 nodes .*: node n0 runs zse 0\.0\.1, this is"):
        mesh.join(wait_seconds=0.2)


def test_a_node_with_other_weights_is_refused(make_mesh):
    mesh = make_mesh(1)
    node = mesh.nodes["n0"]
    opens = node._open_stage

    def other(ask):
        return opens(msgspec.structs.replace(ask, digest="0" * 64))

    node._open_stage = other
    with pytest.raises(MeshError, match=r"n0: .* has other weights than the front's file"):
        mesh.join()


def test_a_node_without_the_model_says_so(make_mesh):
    mesh = make_mesh(1)
    node = mesh.nodes["n0"]
    opens = node._open_stage
    node._open_stage = lambda ask: opens(msgspec.structs.replace(ask, model="/nowhere/it.zse"))
    with pytest.raises(MeshError, match=r"n0: .*/nowhere/it\.zse"):
        mesh.join()


def test_options_that_nobody_knows_are_refused(make_mesh):
    mesh = make_mesh(1)
    ask = AskOpen("tiny", "", 0, 1, {"device": "cuda"})
    with pytest.raises(MeshError, match="options that are not known"):
        mesh.nodes["n0"]._open_stage(ask)


def test_two_nodes_of_one_name_are_told_apart(make_mesh):
    mesh = make_mesh(1)
    twin = NodeSetup(name="n0", secret=b"a secret of the tests")
    mesh.nodes["twin"] = Node(twin, lambda: None, lambda _: None).start()
    with pytest.raises(MeshError, match="two nodes are named 'n0'"):
        mesh.join(least=2, wait_seconds=0.2)


def test_a_stage_that_nobody_else_holds_ends_requests_with_the_name_of_its_node(make_mesh):
    mesh = make_mesh(1)
    answers = mesh.join()
    answers.ask([5, 6, 7], max_tokens=50)
    answers.run(steps=5)
    mesh.nodes.pop("n0").close()
    with pytest.raises(MeshError, match=r"node n0 is lost|lost a stage"):
        answers.run()


def test_a_node_that_comes_later_gets_its_share(make_mesh, alone):
    requests = requests_of(7)
    mesh = make_mesh(2)
    answers = mesh.join()
    until(lambda: all_ready(mesh))
    mesh.nodes.pop("n1").close()
    until(lambda: {duty.node for duty in mesh.front.duties} == {"n0"})
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=6)
    mesh.add("n9")
    until(lambda: "n9" in {duty.node for duty in mesh.front.duties})
    assert answers.run() == alone(requests)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_a_lossy_wire_gives_the_same_text_with_and_without_a_loss(make_mesh, codec):
    """What is sent again are the bytes that were sent, so that a standby sees no other rows."""
    requests = requests_of(4, count=3)
    texts = []
    for lost in ("", "n1"):
        mesh = make_mesh(2)
        answers = mesh.join(activations=codec)
        mesh.front._codecs = [Codec.RAW, Codec[codec.upper()]]  # however fast loopback is
        with mesh.front._lock:
            mesh.front._give_order()
        for prompt, params in requests:
            answers.ask(prompt, **params)
        answers.run(steps=8)
        until(lambda mesh=mesh: all_ready(mesh))
        if lost:
            mesh.nodes.pop(lost).close()
        texts.append(answers.run())
    assert texts[0] == texts[1]


def test_a_survey_sees_nodes_and_disturbs_no_front(make_mesh):
    mesh = make_mesh(2)
    answers = mesh.join()
    addresses = [node.address for node in mesh.nodes.values()]
    answers.ask([1, 2, 3], max_tokens=8)
    finder = Finder(lambda: [*addresses, "127.0.0.1:1"])
    report = survey(finder, b"a secret of the tests", seconds=0.0)
    assert [node["name"] for node in report["nodes"]] == ["n0", "n1"]
    assert len(report["plan"]["links"]) == 2
    assert any("127.0.0.1:1 cannot be reached" in problem for problem in report["problems"])
    assert len(answers.run()["0"]) == 8


def test_who_is_no_front_gives_no_orders(make_mesh):
    mesh = make_mesh(1)
    ended = []
    peers = Peers(
        b"a secret of the tests", lambda _: None,
        lambda name, is_there, _: ended.append((name, is_there)), purpose="survey",
    )  # fmt: skip
    name = peers.connect(mesh.nodes["n0"].address, 1.0)
    assert peers.by_name[name].answer(AskFacts(), Facts).name == "n0"
    with pytest.raises(MeshError):
        peers.by_name[name].answer(Order(9, [], [], [], 0, []), Done)
    until(lambda: (name, False) in ended)
    assert mesh.nodes["n0"]._worker.state.epoch == 0


def test_messages_of_random_bytes_are_refused_or_read():
    rng = random.Random(8)
    sample = write_batch_sample()
    for _ in range(300):
        changed = bytearray(sample)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        for read in (lambda data: read_batch(data, 100), decode_ask):
            try:
                read(bytes(changed))
            except MeshError:
                continue
    with pytest.raises(MeshError):
        decode(b"\xc1", StepHead)


def write_batch_sample():
    from zse.backends.types import SequenceChunk, StepBatch
    from zse.kernels.lm_head_sample.row import SamplingRow

    row = SamplingRow(temperature=0.5, logit_bias={3: 1.0}, banned_token_ids=[4])
    chunk = SequenceChunk(0, [1, 2, 3], 0, [0], "prefill")
    return write_batch(StepBatch(chunks=[chunk], sampling=[[row]]), 100)


@pytest.mark.parametrize(
    ("chunk", "row"),
    [
        (WireChunk(0, b"", 0, b"\0\0\0\0", 0), None),
        (WireChunk(0, b"\0\0\0", 0, b"\0\0\0\0", 0), None),
        (WireChunk(0, b"\0\0\0\0", 0, b"\0\0\0\0", 7), None),
        (None, WireRow(0, 0, 1, 0, 0, 0, tokens=b"\xff\xff\0\0", penalties=b"\0" * 4, additions=b"\0" * 4)),
        (None, WireRow(0, 0, 1, 0, 0, 0, tokens=b"\0" * 4)),
        (None, WireRow(0, 0, 1, 0, 0, 0, banned=b"\xff\xff\xff\xff")),
        (None, WireRow(0, 0, 1, 0, 0, 0, logprobs=1 << 40)),
        (None, WireRow(0, 0, 1, 0, 0, 0, is_masked=True)),
    ],
)  # fmt: skip
def test_what_kernels_would_write_beyond_is_refused_before(chunk, row):
    good = WireChunk(0, b"\0\0\0\0", 0, b"\0\0\0\0", 0)
    batch = WireBatch([chunk or good], [[row] if row else []])
    with pytest.raises(MeshError):
        read_batch(msgspec.msgpack.encode(batch), 100)
