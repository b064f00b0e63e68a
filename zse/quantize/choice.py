"""Which scheme each weight of a checkpoint gets, and what is to be said of it.

Who chooses a scheme gets it, but for what came quantized in a scheme of ours. Who chooses none gets
the checkpoint as it is: what cannot be kept goes to the scheme with about as many bits, and what
was left in 16 bits stays there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from zse.format.schemes import Scheme

if TYPE_CHECKING:
    from zse.format.layout import PlannedTensor
    from zse.models.storage import Storage
    from zse.models.weights import WeightSpec
    from zse.quantize.checkpoint import Checkpoint

    Groups: TypeAlias = list[tuple[str, list[tuple[WeightSpec, PlannedTensor]]]]


class SchemeChoice:
    """The schemes of a checkpoint's weights.

    Args:
        options: What the user asked for.
        checkpoint: Open.
    """

    def __init__(self, options: Storage, checkpoint: Checkpoint) -> None:
        self._asked = options
        self._checkpoint = checkpoint
        form = checkpoint.format
        self._stays = options.is_default and form is not None
        self.options = options
        """What is done: the file's provenance has it."""
        if self._stays and form is not None:
            size = options.group_size if form.nearest == options.quantization else None
            self.options = replace(options, quantization=form.nearest, group_size=size)
        dtype = "fp16" if checkpoint.spec.dtype == "fp16" else "bf16"
        self._plain = replace(options, quantization=dtype, group_size=None, attention="same")

    def groups(self) -> Groups:
        """Return every weight of the checkpoint and how it is stored, group by group."""
        return [
            (group.name, [(weight, self.plan_tensor(weight)) for weight in group.weights])
            for group in self._checkpoint.plan
        ]

    def plan_tensor(self, weight: WeightSpec) -> PlannedTensor:
        """Return how a weight is stored."""
        came_plain = weight.packing is None and weight.name not in self._checkpoint.widened
        if self._stays and weight.is_product and came_plain:
            return self._plain.plan_tensor(weight)
        return self.options.plan_tensor(weight)

    def notes(self) -> tuple[str, ...]:
        """Return a sentence about what stays, and one about what does not."""
        return (*self._kept(), *self._widened())

    def _kept(self) -> tuple[str, ...]:
        asked = self._asked.quantization
        kept = Counter(
            weight.packing.scheme
            for group in self._checkpoint.plan
            for weight in group.weights
            if weight.packing is not None and weight.packing.scheme != asked
        )
        if self._asked.is_default or self._checkpoint.format is None:
            return ()
        return tuple(
            f"{count} matrices stay {scheme.upper()}, as the checkpoint has them: nothing more is "
            f"known of their numbers. {asked.upper()} is for the others."
            for scheme, count in sorted(kept.items())
        )

    def _widened(self) -> tuple[str, ...]:
        form, count = self._checkpoint.format, len(self._checkpoint.widened)
        if form is None or not count:
            return ()
        scheme = Scheme(self.options.quantization)
        words = f"{count} matrices came as {form.title}; they were widened to float32 and stored"
        if scheme.is_plain:
            return (f"{words} anew.",)
        return (f"{words} anew as {scheme.upper()}, which rounds them a second time.",)
