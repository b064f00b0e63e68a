"""Passes of a model that is larger than the memory: some of its layers stream in.

A captured step is a graph for each stretch between two layers that stream, and one for each such
layer: the host waits for a layer before it launches its graph. One graph for the whole step would
have to wait on the device for copies that nobody has put in yet, since bytes may come from a disk;
and where a process has one queue to the GPU, that wait would stand before the copy.

The host is therefore in a pass until its last layer has come, and no pass stands behind another;
the copies do: see ``zse.stream.pump``.
"""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from typing import TYPE_CHECKING

from zse.backends.gpu.passes import captured
from zse.records import record
from zse.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from zse.backends.gpu.graphs import Rehearsal
    from zse.backends.gpu.turning import Turning
    from zse.backends.handles import LayerWeights
    from zse.device.gpu import Block, Gpu, GraphExec, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
    from zse.stream.options import LoadReport
    from zse.stream.placement import Placement
    from zse.stream.weights import StreamedWeights, StreamFacts


_GIVEN_UP_BYTES = 512 * MIB
"""What a step that found no memory gets: as much as is left free at the start."""


class StreamedPasses:
    """See ``zse.backends.gpu.passes.Passes``.

    Args:
        weights: The layers that stream, and what brings them.
        layer_indices: The number of each layer of the model, by the name of its group.
    """

    looks_ahead = False

    def __init__(self, weights: StreamedWeights, layer_indices: dict[str, int]) -> None:
        self._weights = weights
        self._indices = layer_indices
        self._rehearsal: Rehearsal | None = None

    # --- what is always there -------------------------------------------------------------------

    is_arriving = False
    coming = None
    """Layers are not launched after patterns."""

    def before_layers(self) -> None:
        """Do nothing: it stays."""

    def before_head(self) -> None:
        """Do nothing: it stays."""

    def turn(self, turning: Turning, launcher: Launcher) -> None:
        turning.all(launcher)

    def turn_arrived(self) -> None:
        """Do nothing: all is turned at once."""

    def settle(self) -> LoadReport | None:
        return None

    # --- what the program enters ----------------------------------------------------------------

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        names = {index: name for name, index in self._indices.items()}
        return [self.scope(names[index], layer) for index, layer in enumerate(layers)]

    def scope(self, name: str, layer: LayerWeights) -> AbstractContextManager[LayerWeights]:
        """Return the scope of one layer, as the plan stands."""
        number = self._weights.number_of(name)
        return nullcontext(layer) if number is None else _StreamedLayer(self, number, layer)

    def enter(self, number: int) -> None:
        """Wait for a layer; or remember that it is waited for."""
        if self._rehearsal is not None:
            self._rehearsal.mark("enter", number)
        else:
            self._weights.pump.wait_for(number)

    def leave(self, number: int) -> None:
        """Let a layer go behind what is in the stream; or remember it."""
        if self._rehearsal is not None:
            self._rehearsal.mark("leave", number)
        else:
            self._weights.pump.release(number)

    # --- graphs ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def rehearsing(self, rehearsal: Rehearsal) -> Iterator[None]:
        self._rehearsal = rehearsal
        try:
            yield
        finally:
            self._rehearsal = None

    def capture(
        self, gpu: Gpu, stream: Stream, rehearsal: Rehearsal, launcher: Launcher
    ) -> GraphExec:
        parts: list[_Part] = []
        done = 0

        def stretch(end: int) -> None:
            if end > done:
                part = slice(done, end)
                parts.append(_Part(graph=captured(gpu, stream, rehearsal, launcher, part)))

        for place, kind, number in rehearsal.marks:
            stretch(place)
            done = place
            parts.append(_Part(number=number, is_entry=kind == "enter"))
        stretch(rehearsal.num_launches)
        return _StretchedGraph(self, parts)

    # --- memory ---------------------------------------------------------------------------------

    def stays(self, weight: LinearWeight) -> bool:
        return not self._weights.is_in_slot(weight.weights)

    def facts(self) -> StreamFacts:
        return self._weights.facts()

    def start(self) -> None:
        self._weights.start()

    def make_room(self, moved: Callable[[Placement, Block], None]) -> None:
        """Have resident layers stream, too, where the device is short of memory."""
        if self._weights.make_room():
            moved(self._weights.placement, self._weights.blocks)

    def give_up(self, moved: Callable[[Placement, Block], None], /) -> bool:
        """Have resident layers stream, too: a step found no memory."""
        if not self._weights.give_up(_GIVEN_UP_BYTES):
            return False
        moved(self._weights.placement, self._weights.blocks)
        return True

    def close(self) -> None:
        self._weights.close()


class _StreamedLayer:
    """The scope of a layer that streams. It is entered again for every pass."""

    def __init__(self, passes: StreamedPasses, number: int, weights: LayerWeights) -> None:
        self._passes = passes
        self._number = number
        self._weights = weights

    def __enter__(self) -> LayerWeights:
        self._passes.enter(self._number)
        return self._weights

    def __exit__(self, *_: object) -> None:
        self._passes.leave(self._number)


@record
class _Part:
    """A stretch of a captured step; or, without a graph, a layer that is entered or left."""

    graph: GraphExec | None = None
    number: int = 0
    is_entry: bool = False


class _StretchedGraph:
    """A captured step, in stretches; see ``zse.device.gpu.GraphExec``."""

    def __init__(self, passes: StreamedPasses, parts: Sequence[_Part]) -> None:
        self._passes = passes
        self._parts = parts

    def launch(self, stream: Stream) -> None:
        for part in self._parts:
            if part.graph is not None:
                part.graph.launch(stream)
            elif part.is_entry:
                self._passes.enter(part.number)
            else:
                self._passes.leave(part.number)

    def upload(self, stream: Stream) -> None:
        for part in self._parts:
            if part.graph is not None:
                part.graph.upload(stream)

    def destroy(self) -> None:
        for part in self._parts:
            if part.graph is not None:
                part.graph.destroy()
