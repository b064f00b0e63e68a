"""Medusa's heads on a GPU: passes of their model's own backend, over weights in a block beside.

Their states come from the host, as they do on a CPU. A pass is launched kernel by kernel: two for
each block, and those of a choice of tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Residual
from zse.backends.gpu.guessing import GuessingBackend
from zse.backends.gpu.weights import DeviceWeights
from zse.backends.handles import MedusaWeights
from zse.kernels.join.launch import add_bent
from zse.stream.loader import begin_load, plan_load
from zse.stream.placement import SomeGroups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.weights import BoundLinear
    from zse.device.gpu import Block
    from zse.format.spec import ZSEHeader
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.spec import HeadSpec, MedusaSpec
    from zse.stream.source import ByteSource


class MedusaBackend(GuessingBackend):
    """See ``zse.backends.operations.StateOperations`` and ``zse.backends.abilities.BindsHeads``."""

    _heads_block: Block | None = None

    def bind_heads(
        self, header: ZSEHeader, source: ByteSource, heads: Sequence[MedusaSpec]
    ) -> None:
        """Load heads of the model's file into memory of their own; they go with the backend."""
        self._gpu.make_current()
        placement = SomeGroups(header, [head.name for head in heads])
        self._heads_block = block = self._gpu.allocate(placement.length_bytes)
        begin_load(self._gpu, source, plan_load(source, placement), block.address).wait()
        weights = DeviceWeights(self._gpu, placement, block)
        weights.widen_vectors(self._stream)
        bound = tuple(
            MedusaWeights(
                blocks=tuple(map(weights.linear, head.blocks)), matrix=weights.matrix(head.matrix)
            )
            for head in heads
        )
        self.ends = replace(self.ends, medusa=bound)

    def release_heads(self) -> None:
        """Give the memory of heads back; no pass of theirs is in flight."""
        self._gpu.make_current()
        self.ends = replace(self.ends, medusa=())
        if self._heads_block is not None:
            self._stream.synchronize()
            self._heads_block.free()
            self._heads_block = None

    def enter_states(self, step: Step) -> Residual:
        """Return the stream: states were sent to where it is."""
        return Residual(address=step.scratch.residual)

    def add_bent(self, step: Step, residual: Residual, linear: BoundLinear) -> Residual:
        inputs = step.scratch.plain(step.shape.rows, self._hidden)
        self._norm(step, residual, None, inputs)
        product = self._multiply(step, linear.weight, inputs, exact=True)
        add_bent(step.launcher, residual.address, product, linear.bias)
        return residual

    def choose_by(
        self,
        step: Step,
        residual: Residual,
        matrix: LinearWeight,
        head: HeadSpec,  # noqa: ARG002 - nothing of it is computed here
    ) -> None:
        inputs = step.scratch.plain(step.shape.rows, self._hidden)
        self._norm(step, residual, None, inputs)
        self._multiply(step, matrix, inputs, step.scratch.logits, max_splits=1, exact=True)
        self.choose(step)
