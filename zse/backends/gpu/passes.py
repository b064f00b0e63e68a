"""How passes go through the layers of a model: all of them there, or some that stream in.

Layers are entered and left by the model's program. Where all weights are there this costs nothing
and a captured step is one graph; ``streamed`` has passes that wait for what streams.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from zse.backends.gpu.graphs import Rehearsal
    from zse.backends.gpu.row_maxima import RowMaxima
    from zse.backends.handles import LayerWeights
    from zse.device.gpu import Block, Gpu, GraphExec, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
    from zse.stream.options import LoadReport
    from zse.stream.placement import Placement
    from zse.stream.weights import StreamFacts


class Passes(Protocol):
    """What differs between models that are there and models that stream."""

    @property
    def looks_ahead(self) -> bool:
        """Whether a pass is put into the stream at once, so that another can stand behind it."""

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        """Return the scopes that the program enters, one for each layer."""

    @property
    def is_arriving(self) -> bool:
        """Whether weights may still be on their way, so that passes wait for them."""

    def before_layers(self) -> None:
        """Wait for what stands before the layers."""

    def before_head(self) -> None:
        """Wait for everything: tokens follow."""

    def find_maxima(self, maxima: RowMaxima, launcher: Launcher) -> None:
        """Have facts of matrices found for a pass that begins, before it multiplies by them."""

    def settle(self) -> LoadReport | None:
        """Wait until all weights are there; any thread may. None where passes never wait."""

    def rehearsing(self, rehearsal: Rehearsal) -> AbstractContextManager[object]:
        """Return a block in which layers are entered for a launcher that only remembers."""

    def capture(
        self, gpu: Gpu, stream: Stream, rehearsal: Rehearsal, launcher: Launcher
    ) -> GraphExec:
        """Return what repeats what was rehearsed."""

    def stays(self, weight: LinearWeight) -> bool:
        """Whether a matrix is always where it is said to be, so that facts about it can be kept."""

    def facts(self) -> StreamFacts | None:
        """Return what streams; None where nothing does."""

    def start(self) -> None:
        """Begin; what stays is there."""

    def make_room(self, moved: Callable[[Placement, Block], None]) -> None:
        """Give memory back where the device is short of it; called between steps.

        Where weights lie elsewhere then, ``moved`` is told where.
        """

    def give_up(self, moved: Callable[[Placement, Block], None], /) -> bool:
        """Give memory back because a step found none; whether there was some to give."""

    def close(self) -> None:
        """End what runs beside steps."""


class WholePasses:
    """Of a model that is all there."""

    looks_ahead = True

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        return [nullcontext(layer) for layer in layers]

    @property
    def is_arriving(self) -> bool:
        return False

    def before_layers(self) -> None:
        """Do nothing."""

    def before_head(self) -> None:
        """Do nothing."""

    def find_maxima(self, maxima: RowMaxima, launcher: Launcher) -> None:
        maxima.find(launcher)

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
        """Do nothing: all of it is needed."""

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
    """Return a graph of what was rehearsed, or of a part of it; its code is loaded."""
    with gpu.capture(stream) as capture:
        rehearsal.repeat_on(launcher, part)
    graph = capture.graph.instantiate()
    graph.upload(stream)
    capture.graph.destroy()
    return graph
