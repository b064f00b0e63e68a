"""Passes of a model whose weights are still on their way: what is computed waits for its own.

Weights arrive in the order in which they are used. So the prompt of the request that woke a machine
goes through the first layers while the last are on their way: the host waits for a layer's groups
before it puts the layer's kernels into the stream. Before the head it waits for everything, digests
where they are checked, and the file's being the same still: no token comes of anything less.

Once all is there this is what ``WholePasses`` is, and costs a look at an attribute for a layer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zse.backends.gpu.passes import WholePasses
from zse.errors import LoadCancelledError, ZSEError
from zse.records import record
from zse.stream.fit import LAYER_PREFIX
from zse.stream.placement import members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.graphs import Rehearsal
    from zse.backends.gpu.passes import ComingLayers, Passes
    from zse.backends.gpu.turning import Turning
    from zse.backends.handles import LayerWeights
    from zse.device.phases import Phases
    from zse.format.spec import Group
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.spec import ModelSpec
    from zse.stream.options import LoadReport
    from zse.stream.plan import ReadPlan


class RestOfStart:
    """What is left of a start when its backend can be asked already.

    Args:
        preparations: Of a first request, a little at a time.
        phases: Told what takes the time.
        told: Told how the weights came.
    """

    def __init__(
        self, preparations: Iterator[None], phases: Phases, *, told: Callable[[LoadReport], None]
    ) -> None:
        self._preparations = preparations
        self._phases = phases
        self._told = told
        self._warming = contextlib.ExitStack()
        self._has_begun = False

    def prepare(self) -> bool:
        """Do a little of it; return whether there was anything."""
        if not self._has_begun:
            self._has_begun = True
            self._warming.enter_context(self._phases("warm-up"))
        return next(self._preparations, self) is not self

    def settle(self, passes: Passes) -> None:
        """Wait for the weights; raises as ``Passes.settle``."""
        self._warming.close()
        with self._phases("weights-to-gpu"):
            report = passes.settle()
        if report is not None:
            self._told(report)


class ArrivingPasses(WholePasses):
    """See ``zse.backends.gpu.passes.Passes``.

    Args:
        arrival: The weights on their way; all of one file, each where the file has it.
        plan: What is read.
    """

    def __init__(self, arrival: Arrival, plan: ReadPlan, spec: ModelSpec) -> None:
        self._spec = spec
        self._is_rehearsal = False
        self._parts: list[_Part] = []
        self.begin_again(arrival, plan)

    def begin_again(self, arrival: Arrival, plan: ReadPlan) -> None:
        """Wait for other weights of the same shape from now on, of which only some may be read."""
        self._arrival: Arrival | None = arrival
        """None once another thread, or this one, has seen all of it arrive."""
        self._placement = arrival.placement
        self._address = arrival.block.address
        self._numbers = {group.name: index for index, group in enumerate(plan.groups)}
        self._report: LoadReport | None = None
        self._turning: tuple[Turning, Launcher] | None = None
        """What a pass reads of each matrix's turned form, still to be made of some."""

    @property
    def is_arriving(self) -> bool:
        return self._arrival is not None

    @property
    def coming(self) -> ComingLayers | None:
        return None if self._arrival is None else self

    def scopes(self, layers: Sequence[LayerWeights]) -> list[AbstractContextManager[LayerWeights]]:
        return [_ArrivingLayer(self, index, layer) for index, layer in enumerate(layers)]

    @contextlib.contextmanager
    def rehearsing(self, rehearsal: Rehearsal) -> Iterator[Rehearsal]:
        """Have nothing waited for."""
        self._is_rehearsal = True
        try:
            yield rehearsal
        finally:
            self._is_rehearsal = False

    # --- what a pass comes to -------------------------------------------------------------------

    def before_layers(self) -> None:
        """Wait for what stands before the layers."""
        if self._arrival is not None and not self._is_rehearsal:
            self._wait_for(self._part(-1))

    def is_here(self, place: int) -> bool:
        """Whether nothing of a layer is read."""
        return not any(name in self._numbers for name in self._part(place).groups)

    def enter(self, place: int) -> None:
        """Wait for a layer, and have its matrices turned if the pass reads them so."""
        if self._arrival is not None and not self._is_rehearsal:
            self._wait_for(self._part(place))
        if self._turning is not None:
            self._turn(place)

    def before_head(self) -> None:
        """Wait for everything: tokens follow."""
        if self._arrival is not None and not self._is_rehearsal:
            with _of_a_pass():
                self.settle()
        if self._turning is not None:
            self._turn(None)

    def turn(self, turning: Turning, launcher: Launcher) -> None:
        if self._arrival is None:
            turning.all(launcher)
        else:
            self._turning = turning, launcher

    def turn_arrived(self) -> None:
        arrival = self._arrival
        if arrival is not None and arrival.has_arrived:
            self.settle()
            self._turn(None)

    def _turn(self, place: int | None) -> None:
        """Have a layer's matrices turned, or all that are left."""
        if self._is_rehearsal or self._turning is None:
            return
        turning, launcher = self._turning
        if self._arrival is None or place is None:
            self._turning = None
            turning.all(launcher)
        else:
            turning.some(launcher, self._part(place).holds)

    # --- the weights ----------------------------------------------------------------------------

    def settle(self) -> LoadReport | None:
        """Wait until all of them are there; any thread may.

        Raises:
            FormatError, StoreError, DeviceError: What kept them from it; a pass ends in
                ``LoadCancelledError`` then.
            LoadCancelledError: The model was closed.
        """
        if self._arrival is not None:
            self._report = self._arrival.wait()
            self._arrival = None
        return self._report

    def close(self) -> None:
        """Stop what is still on its way."""
        if self._arrival is not None:
            self._arrival.stop()

    def _wait_for(self, part: _Part) -> None:
        arrival = self._arrival
        if arrival is None:  # another thread has seen all of it arrive
            return
        numbers = [self._numbers[name] for name in part.groups if name in self._numbers]
        with _of_a_pass():
            for number in sorted(numbers):
                arrival.wait_for_group(number)

    def _part(self, place: int) -> _Part:
        """Return what a layer reads, by its place; for -1, what the layers stand on."""
        if not self._parts:
            self._parts = self._assign()
        return self._parts[1 + place]

    def _assign(self) -> list[_Part]:
        """Return what each part of the program reads, the head's excepted."""
        placement = self._placement
        group_of = {
            entry.name: group for group, entries in members(placement.header) for entry in entries
        }
        shift = self._address - placement.origin_bytes
        found: list[dict[str, Group]] = [{} for _ in range(1 + len(self._spec.layers))]
        place = -1
        for part in self._spec.groups():
            if part.name.startswith(LAYER_PREFIX):
                place = int(part.name.removeprefix(LAYER_PREFIX))
            elif place >= 0:
                break  # the head, which everything is waited for before
            groups = [group_of[weight.name] for weight in part.weights]
            found[1 + place].update((group.name, group) for group in groups)
        return [
            _Part(
                groups=tuple(groups),
                spans=[
                    (shift + group.offset_bytes, shift + group.end_bytes)
                    for group in groups.values()
                ],
            )
            for groups in found
        ]


@record
class _Part:
    """What a part of the program reads."""

    groups: tuple[str, ...]
    spans: Sequence[tuple[int, int]]
    """Addresses where its weights lie, from the first to behind the last."""

    def holds(self, weight: LinearWeight) -> bool:
        return any(first <= weight.weights < end for first, end in self.spans)


@contextlib.contextmanager
def _of_a_pass() -> Iterator[None]:
    """Have a step that misses its weights end as if the load was stopped.

    Why they did not come is told to who waits for all of them, and closes the model.
    """
    try:
        yield
    except LoadCancelledError:
        raise
    except ZSEError as error:
        raise LoadCancelledError(f"the weights did not arrive: {error}") from error


class _ArrivingLayer:
    """The scope of a layer. It is entered again for every pass."""

    def __init__(self, passes: ArrivingPasses, place: int, weights: LayerWeights) -> None:
        self._passes = passes
        self._place = place
        self._weights = weights

    def __enter__(self) -> LayerWeights:
        self._passes.enter(self._place)
        return self._weights

    def __exit__(self, *_: object) -> None:
        pass
