"""Linear attention of one step: what its kernels are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.delta.launch import DeltaRuns, DeltaVectors, delta_decode, delta_prefill

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Step
    from zse.backends.operations import DeltaWeights
    from zse.kernels.delta.shape import DeltaShape
    from zse.kernels.layout import Activation, Partials


def mix_states(
    step: Step,
    shape: DeltaShape,
    products: tuple[Partials, Partials],
    weights: DeltaWeights,
    layer: int,
    output: Activation,
) -> None:
    """Move the states of a step's sequences on, and write what they give, [rows, value columns].

    ``products`` are the summands of inputs and of gates.
    """
    inputs, gates = products
    states = step.states.layers[layer]
    vectors = DeltaVectors(
        convolution=weights.convolution,
        decay=weights.decay,
        step_bias=weights.step_bias,
        norm=weights.norm.weight,
        epsilon=weights.norm.epsilon,
    )
    decode_rows, prefill_rows = step.shape.decode_rows, step.shape.prefill_rows
    if decode_rows:
        delta_decode(
            step.launcher,
            shape,
            inputs.part(0, decode_rows),
            gates.part(0, decode_rows),
            vectors,
            states,
            output,
            positions_address=step.inputs.positions,
            slots_address=step.inputs.slots,
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
