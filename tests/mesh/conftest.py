"""Nodes of a mesh in this process, each with threads and sockets of its own, and a front."""

from __future__ import annotations

from itertools import count

import pytest

from zse import __version__
from zse.engine.core import EngineCore
from zse.engine.opening import open_file
from zse.engine.request import Request, SamplingParams
from zse.mesh.finding import Finder
from zse.mesh.handshake import Introduction
from zse.mesh.joining import MeshSetup, join_mesh
from zse.mesh.messages import Facts
from zse.mesh.node import Node, NodeSetup
from zse.mesh.opening import opener
from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

SECRET = b"a secret of the tests"
SECRET_OF_PROCESSES = b"a secret of processes"
LOAD = {"device": "cpu", "threads": 1, "num_blocks": 64, "block_size": 8, "max_sequences": 8,
        "deterministic": True, "speculate": "off"}  # fmt: skip


def facts_of(name, devices=None):
    shares = (1,) if devices is None else devices.shares
    return Facts(name, 1 << 30, 1e9, 1, __version__, "a test", shares)


class Answers:
    """Requests to an engine, driven step by step."""

    def __init__(self, runner, options, **core):
        self.core = EngineCore(runner, options, eos_token_ids=(), **core)
        self.texts = {}
        self._numbers = count()

    def ask(self, prompt, **params):
        name = str(next(self._numbers))
        self.texts[name] = []
        values = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **params}
        self.core.add_request(
            Request(request_id=name, prompt_token_ids=list(prompt), params=SamplingParams(**values))
        )
        return name

    def step(self):
        for event in self.core.step():
            if event.token_id is not None:
                self.texts[event.request_id].append(event.token_id)

    def run(self, steps=10_000):
        while self.core.has_work and steps:
            self.step()
            steps -= 1
        return self.texts


class TestMesh:
    __test__ = False

    def __init__(self, num_nodes, devices=None):
        self.settings = load_settings()
        self.nodes = {}
        for number in range(num_nodes):
            self.add(f"n{number}", devices=devices)
        self.reader = open_file("tiny", load_options(**LOAD), self.settings)
        self.answers = None

    def add(self, name, port=0, version=__version__, devices=None):
        setup = NodeSetup(name=name, secret=SECRET, port=port)
        opens = opener(self.settings, threads=1, devices=devices)
        node = Node(setup, lambda: facts_of(name, devices), opens)
        node._own = Introduction(name, "node", version)
        self.nodes[name] = node.start()
        return node

    def join(self, least=None, begin_speculation=None, **options):
        load = load_options(**{**LOAD, **options.pop("load", {})})
        setup = MeshSetup(
            secret=SECRET,
            finder=Finder(lambda: [node.address for node in self.nodes.values()]),
            least_nodes=least or len(self.nodes),
            split=options.pop("split", "even"),
            **options,
        )
        runner = join_mesh(self.reader, "tiny", load, setup)
        self.answers = Answers(runner, load, begin_speculation=begin_speculation)
        return self.answers

    def join_processes(self, **options):
        load = load_options(**{**LOAD, **options})
        setup = MeshSetup(
            secret=SECRET_OF_PROCESSES,
            finder=Finder(lambda: list(self.forked.addresses.values())),
            least_nodes=len(self.forked.addresses),
            split="even",
        )
        self.answers = Answers(join_mesh(self.reader, "tiny", load, setup), load)

    @property
    def front(self):
        return self.answers.core.runner.front

    def close(self):
        if self.answers is not None:
            self.answers.core.close()
        for node in self.nodes.values():
            node.close()
        self.reader.close()


@pytest.fixture
def make_mesh():
    meshes = []

    def make(num_nodes, **options):
        meshes.append(TestMesh(num_nodes, **options))
        return meshes[-1]

    yield make
    for mesh in meshes:
        mesh.close()


@pytest.fixture(scope="session")
def alone():
    """The same model in one process."""

    def run(requests, **load):
        options = load_options(**{**LOAD, **load})
        reader = open_file("tiny", options, load_settings())
        answers = Answers(load_runner(reader, options), options)
        for prompt, params in requests:
            answers.ask(prompt, **params)
        texts = answers.run()
        answers.core.close()
        reader.close()
        return texts

    return run
