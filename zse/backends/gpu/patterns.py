"""Which layers of a model launch the same, and in what they differ: found in what steps launched.

Launches of two layers that are alike differ in addresses of weights and of caches alone, and these
are the same in every step. So of a layer is kept in what it differs from the first one of its kind;
then that one is enough.

Nothing of it is assumed, not even which layers are alike. A pattern is used when it has told all
launches of two other steps correctly, and is held against a whole step again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zse.kernels.launcher import Launch, Repeating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.inputs import InputShape
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher, Repeated, Value

LEAST_SPARED = 3
"""Layers that must be launched without the program for a pattern to pay."""
CHECKS = 2
"""Steps that a pattern must tell before it is used."""
USES_BETWEEN_CHECKS = 1024
FIRST = 1
"""The first layer that others are told by. The one before reads the embedding in place of sums."""


Signature: TypeAlias = "tuple[str, ...]"
"""Keys of what a layer launches."""
Place: TypeAlias = tuple[int, int]
"""An argument of a layer: of which launch, and which of its arguments."""


@dataclass
class Kind:
    """Layers that launch the same, but for some arguments."""

    reference: int
    """The first of them: by its launches in a step the others' are known."""
    places: tuple[Place, ...]
    """Where the others differ from it, and so from each other."""
    rounds: list[list[Value]] = field(default_factory=list)
    """What each of the others has there."""
    repeated: Repeated | None = None
    """Launches them, once they were."""

    def launches(self, number: int, reference: Sequence[Launch]) -> list[Launch]:
        """Return what one of them launches where the first one launches this."""
        changed = list(reference)
        for (call, argument), value in zip(self.places, self.rounds[number], strict=True):
            arguments = list(changed[call].arguments)
            arguments[argument] = value
            changed[call] = changed[call]._replace(arguments=tuple(arguments))
        return changed

    def launch(self, launcher: Launcher, reference: Sequence[Launch], rounds: range) -> None:
        """Launch some of them, one after the other."""
        if isinstance(launcher, Repeating):
            if self.repeated is None:
                variants = [launch.variant for launch in reference]
                self.repeated = launcher.repeated(variants, self.places, self.rounds)
            self.repeated.launch(reference, rounds)
            return
        for number in rounds:  # of who only notes what is launched
            for variant, grid, arguments in self.launches(number, reference):
                launcher.launch(variant, grid, *arguments)


class Member(NamedTuple):
    """A layer as one of its kind."""

    kind: Kind
    number: int
    """Of its round."""


@dataclass
class Pattern:
    """Which layers are launched after others; by the first layers' launches it was found."""

    shape: InputShape
    """Of the step that it was made of."""
    references: dict[int, Signature]
    """The first layers of each kind."""
    members: dict[int, Member]
    """The layers behind them, by number."""
    num_checked: int = 0
    """Steps of other numbers of rows that it has told."""
    num_alike: int = 0
    """Steps of as many rows that it has told: pieces of prompts fill a step to the same number."""
    num_used: int = 0

    def is_known_for(self, shape: InputShape) -> bool:
        """Whether it has told enough other steps to tell one of this shape."""
        is_alike = shape.rows == self.shape.rows and self.num_alike >= CHECKS
        return is_alike or self.num_checked >= CHECKS

    @property
    def is_due(self) -> bool:
        """Whether it is to be held against a whole step again."""
        return self.num_used % USES_BETWEEN_CHECKS == 0

    def note_told(self, shape: InputShape) -> None:
        """Note that it has told a step, which proves something where other things lie elsewhere."""
        mine = self.shape
        if shape.prefill_rows != mine.prefill_rows and shape.length_bytes != mine.length_bytes:
            self.num_checked += shape.rows != mine.rows
            self.num_alike += shape.rows == mine.rows

    def tells(self, layers: dict[int, list[Launch]]) -> bool:
        """Whether it tells all launches of a step's layers."""
        if any(signature_of(layers[number]) != keys for number, keys in self.references.items()):
            return False
        return all(
            layers[layer] == kind.launches(number, layers[kind.reference])
            for layer, (kind, number) in self.members.items()
        )


class Patterns:
    """The patterns of one model where its weights and caches are; forgotten when they move."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._found: dict[Signature, Pattern | None] = {}
        """By what the first layer launches; None where too few layers are alike."""
        self.rehearsed: set[tuple[int, int]] = set()
        """Answers and rows of prompts of steps that were rehearsed to learn by."""

    @property
    def are_wanted(self) -> bool:
        # Beside the first two and the last one, a layer of each run is gone through.
        return self.num_layers >= LEAST_SPARED + 3

    @property
    def are_known(self) -> bool:
        """Whether any was found."""
        return any(self._found.values())

    @property
    def num_used(self) -> int:
        """Steps that one of them has told, or was held against once more."""
        return sum(pattern.num_used for pattern in self._found.values() if pattern is not None)

    def forget(self) -> None:
        self._found.clear()
        self.rehearsed.clear()

    def are_unlike(self, first: list[Launch]) -> bool:
        """Whether the layers of such a step are known not to be alike."""
        return self._found.get(signature_of(first), self) is None

    def to_use(self, shape: InputShape, first: list[Launch]) -> Pattern | None:
        """Return what layers of a step may be launched by; None: go through them."""
        pattern = self._found.get(signature_of(first))
        if pattern is None or not pattern.is_known_for(shape):
            return None
        pattern.num_used += 1
        return None if pattern.is_due else pattern

    def learn(self, shape: InputShape, layers: dict[int, list[Launch]]) -> None:
        """Take what a step launched in all layers but the first and the last."""
        signature = signature_of(layers[FIRST])
        pattern = self._found.get(signature)
        if pattern is None:
            if signature not in self._found:
                self._found[signature] = _pattern_of(shape, layers)
        elif not pattern.tells(layers):
            self._found[signature] = None
        else:
            pattern.note_told(shape)


def signature_of(layer: list[Launch]) -> Signature:
    """Return the keys of what a layer launched."""
    return tuple([launch.variant.key for launch in layer])


def _pattern_of(shape: InputShape, layers: dict[int, list[Launch]]) -> Pattern | None:
    """Return which layers are launched after others; None where these are too few."""
    references: dict[tuple[tuple[str, Grid], ...], int] = {}
    kinds: dict[tuple[int, tuple[Place, ...]], Kind] = {}
    members: dict[int, Member] = {}
    for layer, launches in layers.items():
        form = tuple([(launch.variant.key, launch.grid) for launch in launches])
        reference = references.setdefault(form, layer)
        if reference == layer:
            continue
        places = _places(launches, layers[reference])
        kind = kinds.setdefault((reference, places), Kind(reference, places))
        members[layer] = Member(kind, len(kind.rounds))
        kind.rounds.append([launches[call].arguments[argument] for call, argument in places])
    if sum(layer + 1 in members for layer in members) < LEAST_SPARED:
        return None
    signatures = {layer: signature_of(layers[layer]) for layer in references.values()}
    return Pattern(shape, signatures, members)


def _places(launches: list[Launch], reference: list[Launch]) -> tuple[Place, ...]:
    """Return where two layers that launch the same have other arguments."""
    return tuple(
        (call, argument)
        for call, (own, other) in enumerate(zip(launches, reference, strict=True))
        for argument, (mine, theirs) in enumerate(zip(own.arguments, other.arguments, strict=True))
        if mine != theirs
    )
