"""Layers that are launched after the pattern of the second one, without the program in between.

A step with prompts has a shape of its own, so no graph holds it, and the host launches some four
hundred kernels for it, one by one. What takes its time is not the driver but the way there: for
each layer the same kernels are chosen for the same shapes. Of a model whose layers are alike,
launches of two layers differ in addresses of weights and of caches alone, and these are the same in
every step. So of a layer is kept in what it differs from the second one; then that one is enough.

Nothing of it is assumed. A pattern is used when it has told all launches of two other steps
correctly, and is held against a whole step again now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from zse.backends.gpu.inputs import InputShape
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.variant import Variant

LEAST_LAYERS = 6
"""Of a model for which this pays: four are always gone through."""
CHECKS = 2
"""Steps that a pattern must tell before it is used."""
USES_BETWEEN_CHECKS = 1024
_REFERENCE = 1
"""The layer that others are told by. The first one reads the embedding in place of sums."""


class Launch(NamedTuple):
    """What a launcher was asked for."""

    variant: Variant
    grid: Grid
    arguments: tuple[Value, ...]


Difference: TypeAlias = tuple[tuple[int, "Value"], ...]
"""Arguments of a launch that are not those of the reference: their places and values."""


@dataclass
class Pattern:
    """How layers differ from the reference, launch by launch."""

    shape: InputShape
    """Of the step that it was made of."""
    layers: list[list[Difference]]
    """Of the layers behind the reference."""
    num_checked: int = 0
    num_used: int = 0

    @property
    def is_trusted(self) -> bool:
        return self.num_checked >= CHECKS and self.num_used % USES_BETWEEN_CHECKS > 0

    def tells(self, layers: list[list[Launch]]) -> bool:
        """Whether it tells all launches of a step's layers, of which the first is the reference."""
        reference, *others = layers
        return others == [
            [_changed(launch, own) for launch, own in zip(reference, layer, strict=True)]
            for layer in self.layers
        ]


Signature: TypeAlias = "tuple[str, ...]"
"""Keys of what a layer launches."""


class Patterns:
    """The patterns of one model where its weights and caches are; forgotten when they move."""

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self._found: dict[Signature, Pattern | None] = {}
        """None for layers that are not alike."""

    @property
    def are_wanted(self) -> bool:
        return self.num_layers >= LEAST_LAYERS

    def forget(self) -> None:
        self._found.clear()

    def are_unlike(self, reference: list[Launch]) -> bool:
        """Whether the layers behind this one are known not to be alike."""
        return self._found.get(_signature(reference), self) is None

    def to_use(self, reference: list[Launch]) -> Pattern | None:
        """Return what the layers behind this one may be launched by; None: go through them."""
        pattern = self._found.get(_signature(reference))
        if pattern is None or pattern.num_checked < CHECKS:
            return None
        pattern.num_used += 1
        return pattern if pattern.is_trusted else None

    def learn(self, shape: InputShape, layers: list[list[Launch]]) -> None:
        """Take what a step launched, from the reference to the last layer but one."""
        signature = _signature(layers[0])
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
    _noted: list[list[Launch]] = field(default_factory=list)
    _first_to_go: int = 0
    """The layer from which on all are gone through again."""

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
            self._noted[-1].append(Launch(variant, grid, arguments))

    def begin_layer(self) -> bool:
        """Note that the next layer begins; whether it was launched already.

        Of those that were, the last is gone through once more, without a launch: it leaves what the
        layer behind it begins with.
        """
        self._layer += 1
        last = self.patterns.num_layers - 1
        if self._layer == _REFERENCE + 1:
            self._choose(last)
        if self._layer < self._first_to_go:
            return True
        if self._layer == last:
            if self._mode == "note":
                self.patterns.learn(self.shape, self._noted)
            self._mode = "pass"
        elif self._first_to_go:
            self._mode = "mute"
        elif self._layer == _REFERENCE or self._mode == "note":
            self._mode = "note"
            self._noted.append([])
        return False

    def _choose(self, last: int) -> None:
        """Launch the layers behind the reference, go through them, or learn from them."""
        reference = self._noted[0]
        if self.patterns.are_unlike(reference):
            self._mode = "pass"
        elif (found := self.patterns.to_use(reference)) is not None:
            self._repeat(found)
            self._first_to_go = last - 1

    def _repeat(self, pattern: Pattern) -> None:
        """Launch the layers behind the reference, but the last."""
        launch, reference = self.launcher.launch, self._noted[0]
        for layer in pattern.layers:
            for (variant, grid, arguments), own in zip(reference, layer, strict=True):
                if own:
                    changed = list(arguments)
                    for place, value in own:
                        changed[place] = value
                    launch(variant, grid, *changed)
                else:
                    launch(variant, grid, *arguments)


def _signature(layer: list[Launch]) -> Signature:
    return tuple([launch.variant.key for launch in layer])


def _changed(launch: Launch, own: Difference) -> Launch:
    arguments = list(launch.arguments)
    for place, value in own:
        arguments[place] = value
    return launch._replace(arguments=tuple(arguments))


def _pattern_of(shape: InputShape, layers: list[list[Launch]]) -> Pattern | None:
    """Return how layers differ from the first of them; None where they launch something else."""
    reference, *others = layers
    differences = []
    for layer in others:
        if [each[:2] for each in layer] != [each[:2] for each in reference]:
            return None
        differences.append(
            [_difference(own, other) for own, other in zip(layer, reference, strict=True)]
        )
    return Pattern(shape, differences)


def _difference(own: Launch, other: Launch) -> Difference:
    pairs = enumerate(zip(own.arguments, other.arguments, strict=True))
    return tuple((place, mine) for place, (mine, theirs) in pairs if mine != theirs)


def _are_unlike(shape: InputShape, other: InputShape) -> bool:
    """Whether every size that places things in a step's memory differs between two steps."""
    return (
        shape.rows != other.rows
        and shape.prefill_rows != other.prefill_rows
        and shape.length_bytes != other.length_bytes
    )
