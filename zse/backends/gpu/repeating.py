"""Layers that are launched after the pattern of another one, without the program in between.

A step with prompts has a shape of its own, so no graph holds it, and the host launches some four
hundred kernels for it, one by one. What takes its time is not the driver but the way there: for
each layer the same kernels are chosen for the same shapes. Launches of two layers that are alike
differ in addresses of weights and of caches alone, and these are the same in every step. So of a
layer is kept in what it differs from the first one of its kind; then that one is enough.

Nothing of it is assumed, not even which layers are alike. A pattern is used when it has told all
launches of two other steps correctly, and is held against a whole step again now and then.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from zse.kernels.launcher import Launch, Repeating

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.gpu.inputs import InputShape
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher, Repeated, Value
    from zse.kernels.variant import Variant

LEAST_SPARED = 3
"""Layers that must be launched without the program for a pattern to pay."""
CHECKS = 2
"""Steps that a pattern must tell before it is used."""
USES_BETWEEN_CHECKS = 1024
_FIRST = 1
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
        if self.repeated is None and isinstance(launcher, Repeating):
            variants = [launch.variant for launch in reference]
            self.repeated = launcher.repeated(variants, self.places, self.rounds)
        if self.repeated is not None:
            self.repeated.launch(reference, rounds)
            return
        for number in rounds:
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
    num_used: int = 0

    @property
    def is_trusted(self) -> bool:
        return self.num_checked >= CHECKS and self.num_used % USES_BETWEEN_CHECKS > 0

    def tells(self, layers: dict[int, list[Launch]]) -> bool:
        """Whether it tells all launches of a step's layers."""
        if any(_signature(layers[number]) != keys for number, keys in self.references.items()):
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

    @property
    def are_wanted(self) -> bool:
        # Beside the first two and the last one, a layer of each run is gone through.
        return self.num_layers >= LEAST_SPARED + 3

    def forget(self) -> None:
        self._found.clear()

    def are_unlike(self, first: list[Launch]) -> bool:
        """Whether the layers of such a step are known not to be alike."""
        return self._found.get(_signature(first), self) is None

    def to_use(self, first: list[Launch]) -> Pattern | None:
        """Return what layers of a step may be launched by; None: go through them."""
        pattern = self._found.get(_signature(first))
        if pattern is None or pattern.num_checked < CHECKS:
            return None
        pattern.num_used += 1
        return pattern if pattern.is_trusted else None

    def learn(self, shape: InputShape, layers: dict[int, list[Launch]]) -> None:
        """Take what a step launched in all layers but the first and the last."""
        signature = _signature(layers[_FIRST])
        pattern = self._found.get(signature)
        if pattern is None:
            if signature not in self._found:
                self._found[signature] = _pattern_of(shape, layers)
        elif not pattern.tells(layers):
            self._found[signature] = None
        elif _are_unlike(shape, pattern.shape):
            pattern.num_checked += 1


@dataclass
class RepeatingLauncher:
    """The launcher of one step, which is told of each layer that begins."""

    launcher: Launcher
    patterns: Patterns
    shape: InputShape
    _mode: Literal["pass", "note", "mute"] = "pass"
    _layer: int = -1
    _noted: dict[int, list[Launch]] = field(default_factory=dict)
    _used: Pattern | None = None
    _launched_until: int = 0
    """The last layer that was launched after a pattern."""

    @property
    def device(self) -> DeviceFacts:
        return self.launcher.device

    def prepare(self, *variants: Variant) -> None:
        self.launcher.prepare(*variants)

    def launch(self, variant: Variant, grid: Grid, *arguments: Value) -> None:
        if self._mode == "mute":
            return
        self.launcher.launch(variant, grid, *arguments)
        if self._mode == "note":
            self._noted[self._layer].append(Launch(variant, grid, arguments))

    def begin_layer(self) -> bool:
        """Note that the next layer begins; whether it was launched already and may be left out.

        Of those that were, the last of a run is gone through once more, without a launch: it leaves
        what the layer behind it begins with.
        """
        self._layer += 1
        last = self.patterns.num_layers - 1
        if self._layer == _FIRST + 1:
            first = self._noted[_FIRST]
            self._used = self.patterns.to_use(first)
            if self._used is None and self.patterns.are_unlike(first):
                self._noted.clear()
        if self._used is not None:
            return self._follow(self._used)
        if self._layer == last:
            if self._noted:
                self.patterns.learn(self.shape, self._noted)
            self._mode = "pass"
        elif self._layer == _FIRST or self._noted:
            self._note()
        else:
            self._mode = "pass"
        return False

    def _follow(self, pattern: Pattern) -> bool:
        """Begin a layer of a step that has a pattern; whether it may be left out."""
        if self._layer > self._launched_until:
            run = self._run_from(self._layer, pattern)
            if len(run) > 1:
                self._repeat(run)
                self._launched_until = self._layer + len(run) - 1
        if self._layer <= self._launched_until:
            self._mode = "mute"
            return self._layer < self._launched_until
        if self._layer in pattern.references:
            self._note()
        else:
            self._mode = "pass"
        return False

    def _run_from(self, layer: int, pattern: Pattern) -> list[Member]:
        """Return the layers from this one on that can be launched now, one after the other."""
        run: list[Member] = []
        while (member := pattern.members.get(layer)) is not None:
            reference = member.kind.reference
            noted = self._noted.get(reference)
            if noted is None or _signature(noted) != pattern.references[reference]:
                break  # such a layer has not come yet, or launches something else in this step
            run.append(member)
            layer += 1
        return run

    def _repeat(self, run: list[Member]) -> None:
        """Launch some layers."""
        for kind, rounds in _stretches(run):
            kind.launch(self.launcher, self._noted[kind.reference], rounds)

    def _note(self) -> None:
        self._mode = "note"
        self._noted[self._layer] = []


def _signature(layer: list[Launch]) -> Signature:
    return tuple([launch.variant.key for launch in layer])


def _stretches(run: list[Member]) -> Iterator[tuple[Kind, range]]:
    """Yield layers of one kind that follow each other."""
    for _, group in itertools.groupby(run, lambda member: id(member.kind)):
        members = list(group)
        first = members[0].number
        yield members[0].kind, range(first, first + len(members))


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
    signatures = {layer: _signature(layers[layer]) for layer in references.values()}
    return Pattern(shape, signatures, members)


def _places(launches: list[Launch], reference: list[Launch]) -> tuple[Place, ...]:
    """Return where two layers that launch the same have other arguments."""
    return tuple(
        (call, argument)
        for call, (own, other) in enumerate(zip(launches, reference, strict=True))
        for argument, (mine, theirs) in enumerate(zip(own.arguments, other.arguments, strict=True))
        if mine != theirs
    )


def _are_unlike(shape: InputShape, other: InputShape) -> bool:
    """Whether every size that places things in a step's memory differs between two steps."""
    return (
        shape.rows != other.rows
        and shape.prefill_rows != other.prefill_rows
        and shape.length_bytes != other.length_bytes
    )
