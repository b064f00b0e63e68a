"""What nodes compute at first: stages, forms of rows, and room for keys and values."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING

from zse.backends.kv_dtypes import dtypes_of
from zse.backends.kv_groups import kv_block_bytes, whole_groups
from zse.backends.ranks import Share
from zse.errors import MeshError, NoPlanError, UsageError, needing
from zse.mesh.codecs import Codec, best_codec, codec_named
from zse.mesh.duties import Duty
from zse.mesh.facts import LinkFacts, MeshFacts, NodeFacts
from zse.mesh.messages import AskLook, Look
from zse.models.share import share_of
from zse.models.work import work_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.format.model_file import ModelFile
    from zse.mesh.joining import MeshSetup
    from zse.mesh.partition import Goal, Plan
    from zse.mesh.peers import Peer
    from zse.models.spec import ModelSpec
    from zse.models.work import ModelWork
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.mesh")
_LOOK_BYTES, _LOOK_SECONDS = 1 << 20, 2.0
_UNMEASURED_BYTES_PER_SECOND = 1e9
_SEQUENCES = 16


def divide(
    reader: ModelFile, spec: ModelSpec, options: LoadOptions, setup: MeshSetup, peers: list[Peer]
) -> tuple[tuple[Duty, ...], list[Codec]]:
    """Return who computes which layers at first, and in which form rows come to each stage.

    Raises:
        MeshError: The nodes do not reach each other, or the model does not fit.
    """
    lossy = codec_named(setup.activations)
    is_measured = setup.split == "auto" or lossy is not Codec.RAW
    links = _links(peers, _LOOK_BYTES if is_measured else 0)
    nodes = tuple(_node(peer, _possible_shares(reader, spec, peer)) for peer in peers)
    facts = MeshFacts(nodes=nodes, links=links)
    if setup.split == "even":
        chain = _with_all_devices(facts, enumerate(_even(len(spec.layers), len(peers))))
    else:
        streams = options.batch.max_sequences
        work = work_of(
            spec,
            [one for one in reader.header.tensors if one.name in {w.name for w in spec.weights()}],
            streams=streams,
            context_tokens=options.batch.max_context,
        )
        if setup.split == "memory":
            chain = _with_all_devices(facts, _by_memory(facts, work))
        else:
            plan = _best_plan(facts, work, lossy)
            chain = [(stage.node, stage.end_layer, stage.devices) for stage in plan.stages]
    duties, codecs, first = [], [], 0
    for place, (number, end, devices) in enumerate(chain):
        node = peers[number].name
        duties.append(Duty(first_layer=first, end_layer=end, node=node, devices=devices))
        link = facts.link(chain[place - 1][0], number) if place else LinkFacts()
        # Many rows at once are what a form is chosen for: prompts, and steps of all streams.
        rows = options.batch.max_sequences
        codecs.append(best_codec(link, rows, spec.hidden_size, lossy) if place else Codec.RAW)
        first = end
    return tuple(duties), codecs


def _possible_shares(reader: ModelFile, spec: ModelSpec, peer: Peer) -> tuple[int, ...]:
    """Return how many devices of a node may share a layer of this model.

    Raises:
        UsageError: It computes with numbers of them alone that the model cannot be divided by.
    """
    assert peer.facts is not None
    tensors, problems, found = reader.header.loaded().tensors, list[UsageError](), list[int]()
    for count in peer.facts.shares:
        try:
            if count > 1:
                share_of(spec, tensors, Share(rank=count - 1, ranks=count))
            found.append(count)
        except UsageError as error:
            problems.append(error)
    if not found:
        raise UsageError(f"node {peer.name}: {problems[0]}", hint=problems[0].hint)
    return tuple(found)


def _with_all_devices(
    facts: MeshFacts, chain: Iterable[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return a chain in which each layer is shared by as many devices of its node as can."""
    return [(number, end, max(facts.nodes[number].possible_shares)) for number, end in chain]


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


def _node(peer: Peer, shares: tuple[int, ...]) -> NodeFacts:
    assert peer.facts is not None
    return NodeFacts(
        name=peer.name,
        memory_bytes=peer.facts.memory_bytes,
        bytes_per_second=max(peer.facts.bytes_per_second, 1.0),
        devices=max(shares),
        all_reduce_seconds=peer.facts.sums_seconds,
        shares=shares,
    )


def _links(peers: list[Peer], probe_bytes: int) -> dict[tuple[int, int], LinkFacts]:
    """Return how fast the way is from each node to each other, as they see it.

    Without bytes to measure it by, all that is learned is that there is one.
    """
    pairs = list(permutations(range(len(peers)), 2))
    # Ways that are measured must not share a wire with each other.
    with ThreadPoolExecutor(1 if probe_bytes else max(len(peers), 1)) as threads:
        looks = threads.map(lambda pair: _look(peers[pair[0]], peers[pair[1]], probe_bytes), pairs)
        return dict(zip(pairs, looks, strict=True))


def _look(peer: Peer, other: Peer, probe_bytes: int) -> LinkFacts:
    look = peer.answer(AskLook(other.address, _LOOK_SECONDS, probe_bytes), Look)
    if not look.is_there:
        raise MeshError(
            f"node {peer.name} does not reach {other.name} at {other.address}: {look.error}",
            hint="Start nodes with an address that the others reach: --advertise.",
        )
    rate = look.bytes_per_second or _UNMEASURED_BYTES_PER_SECOND
    return LinkFacts(bytes_per_second=rate, seconds=look.seconds)


def num_blocks_of(
    reader: ModelFile,
    spec: ModelSpec,
    options: LoadOptions,
    duties: tuple[Duty, ...],
    peers: list[Peer],
) -> int:
    """Return the blocks that every stage has room for, with those of another it may stand by for.

    A quarter of a node's memory, half of it for its own stage.
    """
    layers = len(spec.layers)
    sizes = {
        devices: _block_bytes(reader, spec, options, devices)
        for devices in {duty.devices for duty in duties}
    }
    full = -(-options.batch.max_context // options.cache.block_size)
    most = full * min(options.batch.max_sequences, _SEQUENCES)
    memory = {peer.name: peer.facts.memory_bytes for peer in peers if peer.facts}
    for duty in duties:
        each = max(1, sizes[duty.devices] * (duty.end_layer - duty.first_layer) // layers)
        asked = options.cache.kv_bytes // layers * (duty.end_layer - duty.first_layer)
        most = min(most, (asked or memory[duty.node] // 8) // each)
    if most < 1:
        raise MeshError(
            "a node has no room for one block of keys and values",
            hint="Give it more memory, or ask for a shorter context.",
        )
    return most


def _block_bytes(reader: ModelFile, spec: ModelSpec, options: LoadOptions, devices: int) -> int:
    """Return the bytes of a block of all layers on each of the devices that share them."""
    if devices > 1:
        spec = share_of(spec, reader.header.loaded().tensors, Share(rank=0, ranks=devices)).spec
    dtypes = dtypes_of(spec, options.cache.kv_dtype)
    return kv_block_bytes(spec, whole_groups(spec), options.cache.block_size, dtypes)[0]
