"""A front's start: who is there, what lies where, all stages open, and the first order."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from zse.errors import MeshError, ZSEError
from zse.mesh.dividing import divide, num_blocks_of
from zse.mesh.front import Front
from zse.mesh.messages import AskOpen, Done
from zse.mesh.opening import digest_of, shared_options
from zse.mesh.peers import learn_facts
from zse.mesh.runner import MeshRunner
from zse.models.runner import spec_of
from zse.models.stage import check_divisible
from zse.option import with_values
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.format.model_file import ModelFile
    from zse.mesh.codecs import Codec
    from zse.mesh.duties import Duties, Duty
    from zse.mesh.finding import Finder
    from zse.mesh.membership import Patience
    from zse.mesh.peers import Peer
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.mesh")
_OPEN_SECONDS = 600.0
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
        opened = _open_on_nodes(front, reader, model, spec, options, setup)
    except BaseException:
        front.close()
        raise
    front.begin(opened.duties, opened.codecs, opened.opens)
    for duty in opened.duties:
        shared = f", shared by {duty.devices} devices" if duty.devices > 1 else ""
        _LOG.info("layers %d to %d: %s%s", duty.first_layer, duty.end_layer - 1, duty.node, shared)
    return MeshRunner(
        front,
        spec,
        num_blocks=opened.num_blocks,
        block_size=options.cache.block_size,
        max_position=context,
        on_close=setup.on_close,
    )


@record
class _Opens:
    """What a node is asked for, to open a stage."""

    model: str
    digest: str
    shared: dict[str, Any]
    kinds: dict[tuple[int, int], str]
    """Of who opened a stage first: its standbys are of the same."""

    def __call__(self, duty: Duty) -> AskOpen:
        kind = self.kinds.get(duty.layers, "")
        return AskOpen(self.model, self.digest, *duty.layers, self.shared, kind, duty.devices)


@record
class _Opened:
    """All stages, open on nodes."""

    duties: Duties
    codecs: list[Codec]
    num_blocks: int
    opens: _Opens


def _open_on_nodes(
    front: Front,
    reader: ModelFile,
    model: str,
    spec: ModelSpec,
    options: LoadOptions,
    setup: MeshSetup,
) -> _Opened:
    """Deal the layers out; who cannot open its own is left out, where enough others are there."""
    peers, digest = _gather(front, setup), digest_of(reader)
    while True:
        duties, codecs = divide(reader, spec, options, setup, peers)
        num_blocks = options.cache.num_blocks or num_blocks_of(reader, spec, options, duties, peers)
        opens = _Opens(
            model=model, digest=digest, shared=shared_options(options, num_blocks), kinds={}
        )
        problems = _open_all(front, duties, opens)
        if not problems:
            return _Opened(duties=duties, codecs=codecs, num_blocks=num_blocks, opens=opens)
        peers = [peer for peer in peers if peer.name not in problems]
        if len(peers) < max(setup.least_nodes, 1):
            raise next(iter(problems.values()))
        for name, error in problems.items():
            _LOG.warning("node %s computes nothing: %s", name, error)
            front.note_problem(name, f"it cannot compute: {error}")


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


def _open_all(front: Front, duties: Duties, opens: _Opens) -> dict[str, ZSEError]:
    """Have all stages opened; return what nodes said that could not."""
    problems: dict[str, ZSEError] = {}
    with ThreadPoolExecutor(len(duties)) as threads:
        asked = [
            threads.submit(front.peers.by_name[duty.node].answer, opens(duty), Done, _OPEN_SECONDS)
            for duty in duties
        ]
        for duty, each in zip(duties, asked, strict=True):
            try:
                opens.kinds[duty.layers] = each.result().kind
            except ZSEError as error:
                problems[duty.node] = error
    return problems
