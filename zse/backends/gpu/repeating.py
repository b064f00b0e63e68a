"""Layers that are launched after the pattern of another one, without the program in between.

A step with prompts has a shape of its own, so no graph holds it, and the host launches some four
hundred kernels for it, one by one. What takes its time is not the driver but the way there: for
each layer the same kernels are chosen for the same shapes. Where a pattern is known
(``patterns.py``), the program goes through the first layer of each kind and the last one of a run.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zse.backends.gpu.patterns import FIRST, signature_of
from zse.kernels.launcher import Launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.passes import ComingLayers
    from zse.backends.gpu.patterns import Kind, Member, Pattern, Patterns
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.variant import Variant


@dataclass
class RepeatingLauncher:
    """The launcher of one step, which is told of each layer that begins."""

    launcher: Launcher
    patterns: Patterns
    shape: InputShape
    coming: ComingLayers | None = None
    """Waits for the weights of layers; None where all are there."""
    _mode: Literal["pass", "note", "mute"] = "pass"
    _layer: int = -1
    _noted: dict[int, list[Launch]] = field(default_factory=dict)
    _used: Pattern | None = None
    _launched_until: int = 0
    """The last layer that was launched after a pattern."""

    @property
    def device(self) -> DeviceFacts:
        return self.launcher.device

    @property
    def has_pattern(self) -> bool:
        """Whether layers of the step were launched by a pattern."""
        return self._used is not None

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
        if self._layer == FIRST + 1:
            first = self._noted[FIRST]
            self._used = self.patterns.to_use(self.shape, first)
            if self._used is None and self.patterns.are_unlike(first):
                self._noted.clear()
        if self._used is not None:
            return self._follow(self._used)
        if self._layer == last:
            if self._noted:
                self.patterns.learn(self.shape, self._noted)
            self._mode = "pass"
        elif self._layer == FIRST or self._noted:
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
            if noted is None or signature_of(noted) != pattern.references[reference]:
                break  # such a layer has not come yet, or launches something else in this step
            run.append(member)
            layer += 1
        return run

    def _repeat(self, run: list[Member]) -> None:
        """Launch some layers, from the one that begins on."""
        begin = 0
        if self.coming is not None:
            for place in range(len(run)):
                if not self.coming.is_here(self._layer + place):
                    self._launch(run[begin:place])  # what stands before it need not wait
                    begin = place
                self.coming.enter(self._layer + place)
        self._launch(run[begin:])

    def _launch(self, run: list[Member]) -> None:
        for kind, rounds in _stretches(run):
            kind.launch(self.launcher, self._noted[kind.reference], rounds)

    def _note(self) -> None:
        self._mode = "note"
        self._noted[self._layer] = []


def _stretches(run: list[Member]) -> Iterator[tuple[Kind, range]]:
    """Yield layers of one kind that follow each other."""
    for _, group in itertools.groupby(run, lambda member: id(member.kind)):
        members = list(group)
        first = members[0].number
        yield members[0].kind, range(first, first + len(members))
