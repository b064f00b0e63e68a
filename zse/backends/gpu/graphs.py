"""Captured steps: one graph for each kind of step, bucket of rows and way of sampling.

A step of a few hundred launches costs the host more than it costs the device; as a graph it is one
launch. Buckets are powers of two, captured when first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from zse.backends.operations import Forward
    from zse.backends.types import StepKind
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Block, GraphExec, Grid
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.lm_head_sample.arrays import SamplingKind
    from zse.kernels.variant import Variant

MAX_BUCKET = 256
ENTRY_ROOMS = (4_096, 16_384, 65_536, 262_144)
"""Adjusted logits that captured steps have room for; room is sent to the device, full or not."""


TILE_ROOMS = (1, 4, 16, 64, MAX_BUCKET)
"""Tiles of rows with adapters that captured steps have room for: few of each number of rows are
captured, and a tile that is not there costs little."""


Mark: TypeAlias = tuple[int, Literal["enter", "leave"], int]
"""After so many launches, what happens to which layer of those that stream in."""


def bucket_of(rows: int) -> int:
    """Return the rows of the smallest captured step that holds ``rows`` decode rows."""
    return 1 << (rows - 1).bit_length()


def room_for(entries: int) -> int:
    """Return the smallest room for so many adjusted logits; 0 for none, and for too many."""
    return next((room for room in ENTRY_ROOMS if 0 < entries <= room), 0)


def tile_room(tiles: int, rows: int) -> int:
    """Return the smallest room for so many tiles of a step of ``rows`` rows; 0 for none."""
    return min(rows, next(room for room in TILE_ROOMS if tiles <= room)) if tiles else 0


class Rehearsal:
    """A launcher that launches nothing and remembers what it was asked for."""

    def __init__(self, device: DeviceFacts) -> None:
        self.device = device
        self._launches: list[tuple[Variant, Grid, tuple[Value, ...]]] = []
        self.marks: list[Mark] = []

    @property
    def num_launches(self) -> int:
        return len(self._launches)

    def mark(self, kind: Literal["enter", "leave"], number: int) -> None:
        """Remember that a layer that streams in is entered or left here."""
        self.marks.append((len(self._launches), kind, number))

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        self._launches.append((variant, grid, arguments))

    def prepare(self, *variants: Variant) -> None:
        """Do nothing: what is launched is prepared before."""

    def variants(self) -> Iterable[Variant]:
        """Return the kernels that it was asked for, each once, in the order of need."""
        return {variant.key: variant for variant, _, _ in self._launches}.values()

    def prepare_on(self, launcher: Launcher) -> None:
        """Load the code of all kernels that it was asked for."""
        launcher.prepare(*self.variants())

    def repeat_on(self, launcher: Launcher, part: slice = slice(None)) -> None:
        """Launch it all, or a part of it."""
        for variant, grid, arguments in self._launches[part]:
            launcher.launch(variant, grid, *arguments)


class SampledRehearsal(Rehearsal):
    """One that goes through some layers, by their places: enough to know all kernels."""

    def __init__(self, device: DeviceFacts, places: Container[int]) -> None:
        super().__init__(device)
        self._places = places
        self._place = -1

    def begin_layer(self) -> bool:
        """Note that the next layer begins; whether it may be left out."""
        self._place += 1
        return self._place not in self._places


class GraphKey(NamedTuple):
    """What a captured step is looked up by: all that decides which kernels run on how much."""

    kind: StepKind
    rows: int
    """A bucket."""
    sampling: SamplingKind
    entry_room: int = 0
    """Adjusted logits there is room for."""
    adapter_tiles: int = 0
    """Tiles of rows with adapters that there is room for; 0 for a step without adapters."""
    guess: Forward | None = None
    """What guesses, where it is not the model's own pass."""


@record
class CapturedStep:
    """A step that can be repeated."""

    graph: GraphExec
    """All of it or, of a step with masks, what it does before they are known."""
    choice: GraphExec | None
    """What it does with them."""
    inputs: Block
    """Where it reads its inputs."""
    masks: int
    """Address that it reads masks from."""
    residual: int
    """Address of the stream, where it comes from another stage or goes to one."""
    left: int = 0
    """Address of the states that its tokens leave."""
    is_turned: bool = False
    """Whether it reads weights that are kept turned."""

    def free(self) -> None:
        """Give it back; no step of it is in flight."""
        self.graph.destroy()
        if self.choice is not None:
            self.choice.destroy()
        self.inputs.free()
