"""Linear attention: what the kernels of a step are told, and the memory that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.delta.launch import (
    DeltaRuns,
    DeltaVectors,
    delta_decode,
    delta_prefill,
    prefill_workspace_bytes,
)
from zse.kernels.delta.variants import check_delta, output_can_be_quantized

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.backends.gpu.forward import Step
    from zse.backends.handles import DeltaWeights
    from zse.kernels.delta.shape import DeltaShape
    from zse.kernels.layout import Activation, Partials
    from zse.models.layer_spec import LinearAttentionSpec


def delta_obstacles(mixer: LinearAttentionSpec) -> Iterator[str]:
    """Return what of a linear attention the kernels do not compute."""
    try:
        check_delta(mixer.key_dim, mixer.value_dim, mixer.convolution_width)
    except UnsupportedModelError as error:
        yield str(error)


class LinearAttention:
    """The linear attention of a model's layers, whose numbers are given by the layer's own."""

    def __init__(self, shapes: Mapping[int, DeltaShape]) -> None:
        self._shapes = shapes

    def workspace_bytes(self, prefill_rows: int) -> int:
        """Return the bytes that the kernels of a step hand on to each other."""
        shapes = self._shapes.values()
        return max(prefill_workspace_bytes(prefill_rows, shape) for shape in shapes)

    def columns(self, layer: int) -> int:
        """Return the columns of what ``mix`` writes."""
        return self._shapes[layer].value_columns

    def can_quantize(self, layer: int) -> bool:
        """Return whether a decode step can make its output in int8."""
        return output_can_be_quantized(self._shapes[layer].value_dim)

    def mix(
        self,
        step: Step,
        products: tuple[Partials, Partials],
        weights: DeltaWeights,
        layer: int,
        output: Activation,
    ) -> None:
        """Move the states of a step's sequences on, and write what they give.

        ``products`` are the summands of inputs and of gates; the output has a row for each token.
        """
        _mix_states(step, self._shapes[layer], products, weights, layer, output)


def _mix_states(
    step: Step,
    shape: DeltaShape,
    products: tuple[Partials, Partials],
    weights: DeltaWeights,
    layer: int,
    output: Activation,
) -> None:
    inputs, gates = products
    assert step.states is not None
    states = step.states.layers[layer]
    vectors = DeltaVectors(
        convolution=weights.convolution,
        decay=weights.decay,
        step_bias=weights.step_bias,
        norm=weights.norm.weight,
        epsilon=weights.norm.epsilon,
    )
    numbers, told = step.shape, step.inputs
    decode_rows, prefill_rows = numbers.decode_rows, numbers.prefill_rows
    if decode_rows:
        delta_decode(
            step.launcher,
            shape,
            inputs.part(0, decode_rows),
            gates.part(0, decode_rows),
            vectors,
            states,
            output,
            positions_address=told.positions,
            slots_address=told.state_slots if numbers.state_rows else told.slots,
            runs_address=told.state_runs if numbers.state_rows and numbers.rows_follow else 0,
        )
    if prefill_rows:
        first = step.scratch.plain(prefill_rows, shape.value_columns, first_row=decode_rows)
        delta_prefill(
            step.launcher,
            shape,
            inputs.part(decode_rows, prefill_rows),
            gates.part(decode_rows, prefill_rows),
            vectors,
            states,
            _runs(step),
            workspace_address=step.scratch.delta,
            outputs_address=first.values,
        )


def _runs(step: Step) -> DeltaRuns:
    inputs = step.inputs
    return DeltaRuns(
        count=step.shape.runs,
        longest=step.shape.longest_run,
        first_rows=inputs.run_first_rows,
        num_rows=inputs.run_num_rows,
        first_positions=inputs.run_first_positions,
        slots=inputs.run_slots,
    )
