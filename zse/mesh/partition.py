"""Which machines compute which layers: the best of all subsets, orders and cuts.

An exact dynamic program over (nodes used, last node, layers done). Work doubles with each node,
which is why meshes have a dozen at most; what it saves over a split by memory is a factor of two
where machines differ. One stream wants the smallest sum of all stages, many want the smallest
slowest stage, since micro-batches keep all of them busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from zse.errors import NoPlanError
from zse.mesh.codecs import Codec, best_codec
from zse.records import record
from zse.units import memory_text

if TYPE_CHECKING:
    from zse.mesh.facts import MeshFacts, NodeFacts
    from zse.models.work import ModelWork

Goal: TypeAlias = Literal["latency", "throughput"]
_TOLERANCE = 1e-9


@record
class PlannedStage:
    """Layers of one machine."""

    node: int
    first_layer: int
    end_layer: int
    devices: int
    """GPUs of the host that share each layer."""
    seconds: float
    """Of a step."""
    arrives_as: Codec
    """The form in which the stream comes to it; raw for the first stage, to which tokens come."""
    arrival_seconds: float
    memory_bytes: int
    """Of its weights, keys and values on each device."""


@record
class Plan:
    """What lies where, and how fast that should be."""

    stages: tuple[PlannedStage, ...]
    goal: Goal
    rows: int
    """Of a micro-batch."""
    latency_seconds: float
    """Of a token, through all stages."""
    slowest_seconds: float
    """Of the slowest stage, with the way to it."""

    @property
    def tokens_per_second(self) -> float:
        """Of all streams together, with as many micro-batches in flight as there are stages."""
        if self.goal == "latency":
            return self.rows / self.latency_seconds
        in_flight = max(len(self.stages), 1)
        return self.rows * min(in_flight / self.latency_seconds, 1 / self.slowest_seconds)


def plan_layers(
    mesh: MeshFacts, work: ModelWork, *, goal: Goal = "latency", lossy: Codec = Codec.RAW
) -> Plan:
    """Return the best plan.

    Args:
        mesh: The machines.
        work: The model.
        goal: ``latency`` of one stream, or ``throughput`` of all.
        lossy: The form of activations that loses most of those that may be used.

    Raises:
        NoPlanError: The model fits onto no subset of the machines.
    """
    rows = _rows(mesh, work, goal)
    costs = [_stage_seconds(node, work, rows) for node in mesh.nodes]
    edges = _edge_seconds(mesh, work, rows, lossy)
    chain = _search(costs, edges, len(work.layers), goal)
    if chain is None:
        raise NoPlanError(_lack(mesh, work))
    return _written(mesh, work, chain, goal=goal, rows=rows, lossy=lossy)


def evaluate(
    mesh: MeshFacts,
    work: ModelWork,
    chain: list[tuple[int, int]],
    *,
    goal: Goal,
    lossy: Codec = Codec.RAW,
) -> Plan | None:
    """Return the plan of given nodes and ends of layers, in order; None where it does not fit."""
    rows = _rows(mesh, work, goal)
    first = 0
    for node, end in chain:
        if not np.isfinite(_stage_seconds(mesh.nodes[node], work, rows)[first, end]):
            return None
        first = end
    return _written(mesh, work, chain, goal=goal, rows=rows, lossy=lossy)


def by_memory(mesh: MeshFacts, work: ModelWork) -> list[tuple[int, int]]:
    """Return the split in proportion to memory, largest remainders first: what others do."""
    total = sum(node.memory_bytes * node.devices for node in mesh.nodes)
    shares = [len(work.layers) * node.memory_bytes * node.devices / total for node in mesh.nodes]
    counts = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda one: counts[one] - shares[one])
    for one in order[: len(work.layers) - sum(counts)]:
        counts[one] += 1
    chain, end = [], 0
    for node, count in enumerate(counts):
        if count:
            end += count
            chain.append((node, end))
    return chain


def _rows(mesh: MeshFacts, work: ModelWork, goal: Goal) -> int:
    """Return the rows of a micro-batch: streams are dealt out among as many as there are nodes."""
    return 1 if goal == "latency" else max(1, work.streams // len(mesh.nodes))


def _stage_seconds(node: NodeFacts, work: ModelWork, rows: int) -> Any:
    """Return float64 [layers + 1, layers + 1]: seconds of layers first to end; inf: not there."""
    count = len(work.layers)
    held = np.cumsum([0, *(one.weight_bytes + one.kv_bytes for one in work.layers)])
    read = np.cumsum([0, *(one.read_bytes for one in work.layers)])
    held, read = held[None, :] - held[:, None], read[None, :] - read[:, None]
    number = np.arange(count + 1)
    number = number[None, :] - number[:, None]
    best = np.full((count + 1, count + 1), np.inf)
    for devices in node.possible_shares:
        seconds = read / (node.bytes_per_second * devices) + node.overhead_seconds
        seconds = seconds + number * node.row_seconds * (rows - 1) / devices
        if devices > 1:
            seconds = seconds + number * node.all_reduce_seconds
        fits = (held <= node.memory_bytes * devices) & (number > 0)
        best = np.minimum(best, np.where(fits, seconds, np.inf))
    return best


def _edge_seconds(mesh: MeshFacts, work: ModelWork, rows: int, lossy: Codec) -> Any:
    count, width = len(mesh.nodes), work.hidden_size
    edges = np.zeros((count, count))
    for source in range(count):
        for target in range(count):
            if source != target:
                link = mesh.link(source, target)
                edges[source, target] = best_codec(link, rows, width, lossy).seconds(
                    link, rows, width
                )
    return edges


def _search(costs: list[Any], edges: Any, layers: int, goal: Goal) -> list[tuple[int, int]] | None:
    """Return nodes and the ends of their layers, in order."""
    count = len(costs)
    best = np.full((1 << count, count, layers + 1), np.inf)
    for node in range(count):
        best[1 << node, node] = costs[node][0]
    for used in range(1, 1 << count):
        for last in range(count):
            done = best[used, last]
            if not used >> last & 1 or not np.isfinite(done).any():
                continue
            for node in range(count):
                if not used >> node & 1:
                    reached = _after(done, costs[node], edges[last, node], goal).min(axis=0)
                    place = best[used | 1 << node, node]
                    np.minimum(place, reached, out=place)
    ends = best[:, :, layers]
    if not np.isfinite(ends).any():
        return None
    found = np.unravel_index(int(ends.argmin()), ends.shape)
    return _walk_back(best, costs, edges, (int(found[0]), int(found[1]), layers), goal)


def _after(done: Any, cost: Any, edge: float, goal: Goal) -> Any:
    """Return float64 [layers + 1, layers + 1]: by where the stage begins and where it ends."""
    stage = cost + edge
    return done[:, None] + stage if goal == "latency" else np.maximum(done[:, None], stage)


def _walk_back(
    best: Any, costs: list[Any], edges: Any, state: tuple[int, int, int], goal: Goal
) -> list[tuple[int, int]]:
    used, node, end = state
    chain = [(node, end)]
    while used != 1 << node:
        value, before = best[used, node, end], used & ~(1 << node)
        for last in range(len(costs)):
            found = _after(best[before, last], costs[node], edges[last, node], goal)[:, end]
            first = int(found.argmin())
            if before >> last & 1 and found[first] <= value * (1 + _TOLERANCE):
                used, node, end = before, last, first
                break
        chain.append((node, end))
    return chain[::-1]


def _written(
    mesh: MeshFacts,
    work: ModelWork,
    chain: list[tuple[int, int]],
    *,
    goal: Goal,
    rows: int,
    lossy: Codec,
) -> Plan:
    stages: list[PlannedStage] = []
    first = 0
    for place, (number, end) in enumerate(chain):
        node, codec, arrival = mesh.nodes[number], Codec.RAW, 0.0
        if place:
            link = mesh.link(chain[place - 1][0], number)
            codec = best_codec(link, rows, work.hidden_size, lossy)
            arrival = codec.seconds(link, rows, work.hidden_size)
        seconds, devices = _best_share(node, work, rows, first, end)
        held = sum(one.weight_bytes + one.kv_bytes for one in work.layers[first:end])
        stages.append(
            PlannedStage(
                node=number,
                first_layer=first,
                end_layer=end,
                devices=devices,
                seconds=seconds,
                arrives_as=codec,
                arrival_seconds=arrival,
                memory_bytes=held // devices,
            )
        )
        first = end
    times = [stage.seconds + stage.arrival_seconds for stage in stages]
    return Plan(
        stages=tuple(stages),
        goal=goal,
        rows=rows,
        latency_seconds=sum(times),
        slowest_seconds=max(times),
    )


def _best_share(
    node: NodeFacts, work: ModelWork, rows: int, first: int, end: int
) -> tuple[float, int]:
    found = []
    for devices in node.possible_shares:
        layers = work.layers[first:end]
        held = sum(one.weight_bytes + one.kv_bytes for one in layers)
        seconds = sum(one.read_bytes for one in layers) / (node.bytes_per_second * devices)
        seconds += node.overhead_seconds + len(layers) * node.row_seconds * (rows - 1) / devices
        seconds += len(layers) * node.all_reduce_seconds * (devices > 1)
        if held <= node.memory_bytes * devices:
            found.append((seconds, devices))
    return min(found)


def _lack(mesh: MeshFacts, work: ModelWork) -> str:
    needed = sum(one.weight_bytes + one.kv_bytes for one in work.layers)
    there = sum(node.memory_bytes * node.devices for node in mesh.nodes)
    largest = max(one.weight_bytes + one.kv_bytes for one in work.layers)
    return (
        f"the model takes {memory_text(needed)} with {work.streams} sequences of "
        f"{work.context_tokens} tokens, its largest layer {memory_text(largest)}; "
        f"{len(mesh.nodes)} nodes have {memory_text(there)} together"
    )
