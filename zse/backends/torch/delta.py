"""Linear attention in torch: the states of sequences, and a step over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.kernels.delta.reference import DeltaParameters, delta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zse.backends.handles import DeltaWeights
    from zse.backends.torch.step import ChunkRows
    from zse.kernels.delta.shape import DeltaShape


class LayerStates(NamedTuple):
    """The states of one layer, one a slot."""

    history: torch.Tensor
    """float32 [slots, width - 1, channels], oldest first."""
    matrices: torch.Tensor
    """float32 [slots, value_heads, key_dim, value_dim]."""

    def clear(self, slot: int) -> None:
        self.history[slot].zero_()
        self.matrices[slot].zero_()


class States:
    """The states of every layer that has any."""

    def __init__(
        self,
        shapes: Mapping[int, DeltaShape],
        num_slots: int,
        zeros: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
    ) -> None:
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

    def copy(self, source: int, destination: int) -> None:
        for layer in self.layers.values():
            for part in layer:
                part[destination].copy_(part[source])


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
        if chunk.start_position == 0:
            states.clear(chunk.sequence_slot)
        rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens)
        history = states.history[chunk.sequence_slot]
        state = states.matrices[chunk.sequence_slot]
        parts.append(delta(inputs[rows], gates[rows], parameters, shape, history, state))
    return torch.cat(parts)
