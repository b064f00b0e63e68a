"""Linear attention in torch: the states of sequences, and a step over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.states import StateSlots
from zse.kernels.delta.reference import DeltaParameters, delta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.backends.handles import DeltaWeights
    from zse.backends.states import StateLayout
    from zse.backends.torch.step import ChunkRows
    from zse.kernels.delta.shape import DeltaShape


class LayerStates(NamedTuple):
    """The states of one layer, one a slot."""

    history: torch.Tensor
    """float32 [slots, width - 1, channels], oldest first."""
    matrices: torch.Tensor
    """float32 [slots, value_heads, key_dim, value_dim]."""

    def copy(self, source: int, destination: int) -> None:
        for part in self:
            part[destination].copy_(part[source])

    def clear(self, slot: int) -> None:
        self.history[slot].zero_()
        self.matrices[slot].zero_()


class States:
    """The states of every layer that has any."""

    def __init__(
        self,
        layout: StateLayout,
        zeros: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
    ) -> None:
        self.slots = StateSlots(layout)
        shapes, num_slots = layout.shapes, layout.num_slots
        self.layers = {
            index: LayerStates(
                history=zeros(
                    (num_slots, shape.convolution_width - 1, shape.channels), torch.float32
                ),
                matrices=zeros(
                    (num_slots, shape.num_value_heads, shape.key_dim, shape.value_dim),
                    torch.float32,
                ),
            )
            for index, shape in shapes.items()
        }

    def copy(self, from_slot: int, to_slot: int) -> None:
        source, destination = self.slots.of(from_slot), self.slots.of(to_slot)
        for layer in self.layers.values():
            layer.copy(source, destination)


def mix_chunks(
    inputs: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    shape: DeltaShape,
    states: LayerStates,
    chunks: Sequence[ChunkRows],
) -> torch.Tensor:
    """Return float32 [tokens, value columns]; each sequence by itself, so that none sees others.

    Args:
        inputs: float32 [tokens, shape.input_columns].
        gates: float32 [tokens, 2 * value_heads].
    """
    parameters = DeltaParameters(
        convolution=weights.convolution,
        decay=weights.decay,
        step_bias=weights.step_bias,
        norm=weights.norm.weight,
        epsilon=weights.norm.epsilon,
    )
    parts = []
    for chunk in chunks:
        slot = chunk.state_slot
        if chunk.start_position == 0:
            states.clear(slot)
        elif chunk.state_from != slot:
            states.copy(chunk.state_from, slot)
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        history = states.history[slot]
        state = states.matrices[slot]
        parts.append(delta(inputs[rows], gates[rows], parameters, shape, history, state))
    return torch.cat(parts)
