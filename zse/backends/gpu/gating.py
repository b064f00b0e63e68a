"""Gates: what stands between the two matrices of an MLP, and between those of a layer's input.

What is silu(gate) * up of many rows leaves the product of a kept matrix in the form that the next
one reads, so the wide result in between is never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.choosing import Choosing
from zse.backends.gpu.forward import Deferred
from zse.kernels.gate_up.launch import activate, activate_times
from zse.kernels.layout import ACTIVATION_GROUP, Activation, Partials, Plain, Quantized, Turned
from zse.kernels.linear.closed import Begun
from zse.kernels.turned.gates import round_gates, takes_gates, turned_gates
from zse.kernels.turned.launch import takes_silu, turned_silu

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.gpu.forward import Residual, Step, Told
    from zse.backends.gpu.weights import BoundLinear, BoundNorm
    from zse.backends.handles import LayerInputWeights
    from zse.models.layer_spec import LayerInputSpec, MLPSpec


class Gating(Choosing):
    """Products of which one half opens or closes the other."""

    def gate_input(
        self,
        step: Step,
        residual: Residual,
        told: Told,
        weights: LayerInputWeights,
        own: LayerInputSpec,
        layer: int,
    ) -> Deferred:
        """Return activation(residual @ gate^T) * told, to be computed for a known reader."""
        weight = weights.gate.weight
        assert not weights.gate.bias
        # In the stream itself a few numbers are so large that 8 bits would lose the others.
        inputs = step.scratch.plain(step.shape.rows, weight.columns)
        self._norm(step, residual, None, inputs)
        gate, width = self._multiply(step, weight, inputs, exact=True), weight.rows

        def make(output: Activation) -> None:
            activate_times(
                step.launcher,
                gate,
                told.address + layer * width * 4,
                told.columns,
                output,
                activation=own.activation,
            )

        return Deferred(columns=width, can_quantize=width % ACTIVATION_GROUP == 0, write=make)

    def gate_up(
        self,
        step: Step,
        residual: Residual,
        norm: BoundNorm | None,
        linear: BoundLinear,
        mlp: MLPSpec,
    ) -> Deferred:
        """Return activation(gate) * up, or activation(up), to be computed for a known reader."""
        inputs = self._entered(step, residual, norm, linear.weight)
        columns = linear.weight.rows // (1 + mlp.is_gated)
        is_usual = mlp.activation == "silu" and mlp.is_gated
        is_usual = is_usual and not (linear.bias or step.shape.adapter_tiles)
        write_turned = self._turned_gates(step, linear, inputs, columns) if is_usual else None
        if write_turned is not None:

            def make(output: Activation) -> None:
                self._activate(step, linear, mlp, self._joined(step, linear, inputs), output)

        else:
            joined = self._joined(step, linear, inputs)
            if is_usual and isinstance(joined, Plain):
                write_turned = self._turned_silu(step, joined, columns)

            def make(output: Activation) -> None:
                self._activate(step, linear, mlp, joined, output)

        return Deferred(
            columns=columns,
            can_quantize=columns % ACTIVATION_GROUP == 0,
            write=make,
            write_turned=write_turned,
        )

    def _turned_gates(
        self, step: Step, linear: BoundLinear, inputs: Activation | Turned | Begun, columns: int
    ) -> Callable[[Turned], None] | None:
        """Return what multiplies, gates and turns in one; None where the matrix is not kept."""
        kept = self._model.kept_weights.of(linear.weight)
        if (
            kept is None
            or isinstance(inputs, Quantized | Begun)
            or not self._turns(step, linear.weight)
        ):
            return None
        if not takes_gates(columns, step.launcher.device.target):
            return None

        def make_turned(output: Turned) -> None:
            turned = inputs if isinstance(inputs, Turned) else self._turned(step, inputs)
            made_for = self._model.plans.turned_alike
            turned_gates(step.launcher, turned, kept, step.scratch.sums, made_for=made_for)
            round_gates(step.launcher, step.scratch.sums, output, made_for=made_for)

        return make_turned

    def _turned_silu(
        self, step: Step, joined: Plain, columns: int
    ) -> Callable[[Turned], None] | None:
        """Return what gates a product and turns it; None where two passes are quicker."""
        rows = self._model.plans.turned_alike or joined.rows
        if not takes_silu(columns, rows, step.launcher.device.target):
            return None

        def make_turned(output: Turned) -> None:
            turned_silu(step.launcher, joined, output)

        return make_turned

    def _joined(
        self, step: Step, linear: BoundLinear, inputs: Activation | Turned | Begun
    ) -> Plain | Partials:
        """Leave the joined product of gate and up, of many rows in 16 bits."""
        weight = linear.weight
        self._begin_adapting(step, linear, inputs)
        joined: Plain | Partials
        widens = self._model.plans.widens(inputs.rows)
        if isinstance(inputs, Turned) or (isinstance(inputs, Plain) and widens):
            joined = Plain(rows=inputs.rows, columns=weight.rows, values=step.scratch.sums)
            self._multiply_many(step, weight, inputs, joined.values, "bf16")
        else:
            joined = self._multiply(step, weight, inputs)
        self._end_adapting(step, linear, inputs, joined)
        return joined

    def _activate(
        self,
        step: Step,
        linear: BoundLinear,
        mlp: MLPSpec,
        joined: Plain | Partials,
        output: Activation,
    ) -> None:
        activate(
            step.launcher,
            joined,
            output,
            activation=mlp.activation,
            gated=mlp.is_gated,
            bias_address=linear.bias,
            limit=mlp.limit,
        )
