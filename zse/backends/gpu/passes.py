"""How a forward pass goes through the layers: all of them resident, or some streamed in.

The model's program enters and leaves each layer's scope. If all weights are resident this costs
nothing, and a captured step is a single graph. ``streamed`` has passes that wait for layers that
stream in, ``arriving`` those that wait for layers that are still being loaded.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from zse.backends.gpu.graphs import Rehearsal
    from zse.backends.gpu.turning import Turning
    from zse.backends.handles import LayerWeights
    from zse.device.gpu import Block, Gpu, GraphExec, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
    from zse.stream.options import LoadReport
    from zse.stream.placement import Placement
    from zse.stream.weights import StreamFacts


class ComingLayers(Protocol):
    """Layers whose weights are on their way, by their places."""

    def is_here(self, place: int, /) -> bool:
        """Whether nothing of a layer is on its way."""

    def enter(self, place: int, /) -> None:
        """Wait for a layer, and have its matrices turned if the pass reads them so."""


class Passes(Protocol):
    """What differs between resident, arriving and streamed models."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a pass is enqueued without waiting, so that another can be enqueued behind it."""

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        """Return the scopes that the program enters, one for each layer."""

    @property
    def is_arriving(self) -> bool:
        """Whether weights may still be loading, so that passes have to wait for them."""

    @property
    def coming(self) -> ComingLayers | None:
        """What waits for the weights of layers; None where passes need not."""

    def before_layers(self) -> None:
        """Wait for the weights that are used before the first layer."""

    def before_head(self) -> None:
        """Wait for all weights, verified: the pass is about to choose tokens."""

    def turn(self, turning: Turning, launcher: Launcher) -> None:
        """Have made what the pass that begins reads of turned matrices, before it needs it."""

    def turn_arrived(self) -> None:
        """Have it made now, before the pass, if all weights are there."""

    def settle(self) -> LoadReport | None:
        """Wait until all weights are loaded; any thread may. None if passes never wait."""

    def rehearsing(self, rehearsal: Rehearsal) -> AbstractContextManager[object]:
        """Return a context in which layers are entered without waiting: launches are recorded."""

    def capture(
        self, gpu: Gpu, stream: Stream, rehearsal: Rehearsal, launcher: Launcher
    ) -> GraphExec:
        """Return a graph, or several in sequence, of the recorded launches."""

    def stays(self, weight: LinearWeight) -> bool:
        """Whether a matrix never moves, so that what was computed from it can be kept."""

    def facts(self) -> StreamFacts | None:
        """Return figures of what streams; None if nothing does."""

    def start(self) -> None:
        """Begin to stream; the resident weights are loaded."""

    def make_room(self, moved: Callable[[Placement, Block], None]) -> None:
        """Free memory if the device is short of it; called between steps.

        If weights are at other addresses afterwards, ``moved`` is called with them.
        """

    def give_up(self, moved: Callable[[Placement, Block], None], /) -> bool:
        """Free memory because a step ran out of it; return whether any could be freed."""

    def close(self) -> None:
        """End the threads that run beside steps."""


class WholePasses:
    """Passes of a model whose weights are all resident."""

    looks_ahead = True

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        return [nullcontext(layer) for layer in layers]

    @property
    def is_arriving(self) -> bool:
        return False

    @property
    def coming(self) -> ComingLayers | None:
        return None

    def before_layers(self) -> None:
        """Do nothing."""

    def before_head(self) -> None:
        """Do nothing."""

    def turn(self, turning: Turning, launcher: Launcher) -> None:
        turning.all(launcher)

    def turn_arrived(self) -> None:
        """Do nothing: all is turned at once."""

    def settle(self) -> LoadReport | None:
        return None

    def rehearsing(self, rehearsal: Rehearsal) -> AbstractContextManager[object]:
        return nullcontext(rehearsal)

    def capture(
        self, gpu: Gpu, stream: Stream, rehearsal: Rehearsal, launcher: Launcher
    ) -> GraphExec:
        return captured(gpu, stream, rehearsal, launcher)

    def stays(self, weight: LinearWeight) -> bool:
        return bool(weight.weights)

    def facts(self) -> StreamFacts | None:
        return None

    def start(self) -> None:
        """Do nothing."""

    def make_room(self, moved: Callable[[Placement, Block], None]) -> None:
        """Do nothing: every weight is needed."""

    def give_up(self, _moved: Callable[[Placement, Block], None], /) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


def captured(
    gpu: Gpu,
    stream: Stream,
    rehearsal: Rehearsal,
    launcher: Launcher,
    part: slice = slice(None),
) -> GraphExec:
    """Return a graph of the recorded launches, or of a part of them, uploaded to the device."""
    with gpu.capture(stream) as capture:
        rehearsal.repeat_on(launcher, part)
    graph = capture.graph.instantiate()
    graph.upload(stream)
    capture.graph.destroy()
    return graph
