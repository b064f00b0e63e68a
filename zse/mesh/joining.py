"""A front's start: who is there, what lies where, all stages open, and the first order."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.kv_dtypes import dtypes_of
from zse.backends.kv_groups import kv_block_bytes, whole_groups
from zse.errors import MeshError, NoPlanError, ZSEError, needing
from zse.mesh.codecs import Codec, best_codec, codec_named
from zse.mesh.duties import Duty
from zse.mesh.facts import LinkFacts, MeshFacts, NodeFacts
from zse.mesh.front import Front
from zse.mesh.messages import AskLook, AskOpen, Done, Look
from zse.mesh.opening import digest_of, shared_options
from zse.mesh.peers import learn_facts
from zse.mesh.runner import MeshRunner
from zse.models.runner import spec_of
from zse.models.stage import check_divisible
from zse.models.work import work_of
from zse.option import with_values
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.model_file import ModelFile
    from zse.mesh.finding import Finder
    from zse.mesh.membership import Patience
    from zse.mesh.partition import Goal, Plan
    from zse.mesh.peers import Peer
    from zse.models.spec import ModelSpec
    from zse.models.work import ModelWork
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.mesh")
_LOOK_BYTES = 1 << 20
_OPEN_SECONDS = 600.0
_SEQUENCES = 16
_POLL_SECONDS = 0.02


def _nothing() -> None:
    """Do nothing."""


@record
class MeshSetup:
    """What a front is told."""

    secret: bytes
    finder: Finder
    """Asked again for as long as the front is there: nodes may come later, too."""
    least_nodes: int = 1
    """That are waited for."""
    wait_seconds: float = 10.0
    split: str = "auto"
    """``auto``: the best plan; ``even``: all nodes, the same number of layers each; ``memory``: as
    much of the layers as a node has of all memory."""
    activations: str = "raw"
    """What wires may lose at most."""
    patience: Patience | None = None
    on_close: Callable[[], None] = _nothing
    """Called when the runner is closed."""


def join_mesh(reader: ModelFile, model: str, options: LoadOptions, setup: MeshSetup) -> MeshRunner:
    """Return a runner over the nodes that are there.

    Raises:
        MeshError: There are too few nodes, they differ, or the model does not fit.
        UnsupportedModelError: The model cannot be divided.
    """
    spec = spec_of(reader)
    check_divisible(spec)
    context = min(options.batch.max_context or spec.max_position, spec.max_position)
    options = with_values(options, {"max_context": context})
    spec = spec.within(context)
    front = Front(setup.secret, spec.vocab_size, setup.finder, setup.patience)
    try:
        peers = _gather(front, setup)
        duties, codecs = _divide(reader, spec, options, setup, peers)
        num_blocks = options.cache.num_blocks or _num_blocks(spec, options, duties, peers)
        shared = shared_options(options, num_blocks)
        digest = digest_of(reader)

        kinds: dict[tuple[int, int], str] = {}

        def opens(duty: Duty) -> AskOpen:
            kind = kinds.get(duty.layers, "")
            return AskOpen(model, digest, duty.first_layer, duty.end_layer, shared, kind)

        kinds |= _open_all(front, duties, opens)
    except BaseException:
        front.close()
        raise
    front.begin(duties, codecs, opens)
    for duty in duties:
        _LOG.info("layers %d to %d: %s", duty.first_layer, duty.end_layer - 1, duty.node)
    return MeshRunner(
        front,
        spec,
        num_blocks=num_blocks,
        block_size=options.cache.block_size,
        max_position=context,
        on_close=setup.on_close,
    )


def _gather(front: Front, setup: MeshSetup) -> list[Peer]:
    """Connect to the nodes that can be found, until there are enough or time is up."""
    deadline, errors = time.monotonic() + setup.wait_seconds, dict[str, ZSEError]()
    while True:
        for address in setup.finder.addresses():
            front.addresses.add(address)
        there = {peer.address for peer in front.peers.alive()}
        for address in sorted(front.addresses - there):
            try:
                front.peers.connect(address, 1.0)
                errors.pop(address, None)
            except ZSEError as error:
                errors[address] = error
        peers = front.peers.alive()
        if len(peers) >= setup.least_nodes:
            break
        if time.monotonic() > deadline:
            reasons = "; ".join(str(error) for error in errors.values()) or "nobody answers"
            raise MeshError(
                f"{len(peers)} of {setup.least_nodes} nodes are there: {reasons}",
                hint="Start nodes with `zse mesh start`, with the same secret.",
            )
        time.sleep(_POLL_SECONDS)
    learn_facts(peers)
    return sorted(peers, key=lambda peer: peer.name)


def _divide(
    reader: ModelFile, spec: ModelSpec, options: LoadOptions, setup: MeshSetup, peers: list[Peer]
) -> tuple[tuple[Duty, ...], list[Codec]]:
    lossy = codec_named(setup.activations)
    links = _links(peers) if setup.split == "auto" or lossy is not Codec.RAW else {}
    facts = MeshFacts(nodes=tuple(_node(peer) for peer in peers), links=links)
    if setup.split == "even":
        ends = _even(len(spec.layers), len(peers))
        chain = [(number, end) for number, end in enumerate(ends)]
    else:
        streams = options.batch.max_sequences
        work = work_of(
            spec,
            [one for one in reader.header.tensors if one.name in {w.name for w in spec.weights()}],
            streams=streams,
            context_tokens=options.batch.max_context,
        )
        if setup.split == "memory":
            chain = _by_memory(facts, work)
        else:
            plan = _best_plan(facts, work, lossy)
            chain = [(stage.node, stage.end_layer) for stage in plan.stages]
    duties, codecs, first = [], [], 0
    for place, (number, end) in enumerate(chain):
        duties.append(Duty(first_layer=first, end_layer=end, node=peers[number].name))
        link = facts.link(chain[place - 1][0], number) if place else LinkFacts()
        # Many rows at once are what a form is chosen for: prompts, and steps of all streams.
        rows = options.batch.max_sequences
        codecs.append(best_codec(link, rows, spec.hidden_size, lossy) if place else Codec.RAW)
        first = end
    return tuple(duties), codecs


def _by_memory(facts: MeshFacts, work: ModelWork) -> list[tuple[int, int]]:
    with needing("mesh", "a plan of layers"):
        from zse.mesh.partition import by_memory
    return by_memory(facts, work)


def _best_plan(facts: MeshFacts, work: ModelWork, lossy: Codec) -> Plan:
    """Return the best plan in which every node has room to stand by for another, if there is one.

    Raises:
        NoPlanError: The model does not even fit without that.
    """
    with needing("mesh", "a plan of layers"):
        from zse.mesh.partition import plan_layers
    goal: Goal = "throughput" if work.streams > 1 else "latency"
    halves = tuple(replace(node, memory_bytes=node.memory_bytes // 2) for node in facts.nodes)
    try:
        return plan_layers(replace(facts, nodes=halves), work, goal=goal, lossy=lossy)
    except NoPlanError:
        plan = plan_layers(facts, work, goal=goal, lossy=lossy)
        _LOG.warning("nodes have no memory to stand by for each other: a loss will take long")
        return plan


def _even(layers: int, nodes: int) -> list[int]:
    count = min(layers, nodes)
    return [layers * (place + 1) // count for place in range(count)]


def _node(peer: Peer) -> NodeFacts:
    assert peer.facts is not None
    return NodeFacts(
        name=peer.name,
        memory_bytes=peer.facts.memory_bytes,
        bytes_per_second=max(peer.facts.bytes_per_second, 1.0),
    )


def _links(peers: list[Peer]) -> dict[tuple[int, int], LinkFacts]:
    """Return how fast the way is from each node to each other, as they see it."""
    links = {}
    for source, peer in enumerate(peers):
        for target, other in enumerate(peers):
            if source == target:
                continue
            look = peer.answer(AskLook(other.address, 2.0, _LOOK_BYTES), Look)
            if not look.is_there:
                raise MeshError(
                    f"node {peer.name} does not reach {other.name} at {other.address}: "
                    f"{look.error}",
                    hint="Start nodes with an address that the others reach: --advertise.",
                )
            rate = look.bytes_per_second or 1e9
            links[source, target] = LinkFacts(bytes_per_second=rate, seconds=look.seconds)
    return links


def _num_blocks(
    spec: ModelSpec, options: LoadOptions, duties: tuple[Duty, ...], peers: list[Peer]
) -> int:
    """Return the blocks that every stage has room for, with those of another it may stand by for.

    A quarter of a node's memory, half of it for its own stage.
    """
    groups = whole_groups(spec)
    dtypes = dtypes_of(spec, options.cache.kv_dtype)
    size = kv_block_bytes(spec, groups, options.cache.block_size, dtypes)[0]
    layers = len(spec.layers)
    full = -(-options.batch.max_context // options.cache.block_size)
    most = full * min(options.batch.max_sequences, _SEQUENCES)
    memory = {peer.name: peer.facts.memory_bytes for peer in peers if peer.facts}
    for duty in duties:
        each = max(1, size * (duty.end_layer - duty.first_layer) // layers)
        asked = options.cache.kv_bytes // layers * (duty.end_layer - duty.first_layer)
        most = min(most, (asked or memory[duty.node] // 8) // each)
    if most < 1:
        raise MeshError(
            "a node has no room for one block of keys and values",
            hint="Give it more memory, or ask for a shorter context.",
        )
    return most


def _open_all(
    front: Front, duties: tuple[Duty, ...], opens: Callable[[Duty], AskOpen]
) -> dict[tuple[int, int], str]:
    """Have all stages opened; return what kind each is of: standbys are of the same."""
    with ThreadPoolExecutor(len(duties)) as threads:
        asked = [
            threads.submit(front.peers.by_name[duty.node].answer, opens(duty), Done, _OPEN_SECONDS)
            for duty in duties
        ]
        return {duty.layers: each.result().kind for duty, each in zip(duties, asked, strict=True)}
