"""Norms and products of a step, in the form that the next matrix reads best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Residual
from zse.kernels.layout import Activation, Partials, Plain, Quantized, Turned
from zse.kernels.linear.closed import Begun, multiply_begun, multiply_norm
from zse.kernels.linear.launch import linear, linear_prefill
from zse.kernels.linear.launch_8bit import (
    linear_8bit,
    linear_8bit_alike,
    linear_8bit_split,
    takes_8bit,
    turn_activations,
)
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.norm.launch import residual_norm, stream_norm
from zse.kernels.turned.launch import takes_norm, turned_norm

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.weights import BoundLinear, BoundNorm
    from zse.kernels.linear.weight import LinearWeight


class Products:
    """What several operations are made of."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._hidden = model.spec.hidden_size

    def _form(
        self, step: Step, weight: LinearWeight, rows: int, *, can_quantize: bool
    ) -> Activation:
        """Return where a matrix's inputs are to be written, in the form that it reads best."""
        quantized = step.quantized and can_quantize and supports_quantized(weight)
        make = step.scratch.quantized if quantized else step.scratch.plain
        return make(rows, weight.columns)

    def _turns(self, step: Step, weight: LinearWeight) -> bool:
        """Whether a matrix of a step is multiplied turned; what adapters read stays as it is.

        Fewer rows are where it is kept, which matrices of heads that guess are not.
        """
        if step.rounding != "tokens" or not takes_8bit(weight):
            return False
        model = self._model
        return model.plans.widens(step.shape.rows) or model.kept_weights.of(weight) is not None

    def _normalized(
        self, step: Step, residual: Residual, norm: BoundNorm | None, weight: LinearWeight
    ) -> Activation | Turned:
        if norm is not None and self._turns_norm(step, residual, norm, weight):
            turned = step.scratch.turned(step.shape.rows, weight.columns)
            added = residual.take_pending()[0]
            turned_norm(
                step.launcher, residual.address, norm.weight, norm.epsilon, turned, added=added
            )
            return turned
        output = self._form(step, weight, step.shape.rows, can_quantize=True)
        self._norm(step, residual, norm, output)
        return output

    def _entered(
        self, step: Step, residual: Residual, norm: BoundNorm | None, weight: LinearWeight
    ) -> Activation | Turned | Begun:
        """Return the norm of the stream, which the product before may have begun."""
        return residual.take_begun() or self._normalized(step, residual, norm, weight)

    def _begin_norm(
        self,
        step: Step,
        weight: LinearWeight,
        inputs: Quantized,
        residual: Residual,
        norm: BoundNorm,
    ) -> Residual:
        """Add a product to the stream and begin its norm, in one kernel."""
        begun = step.scratch.begun(inputs.rows, weight.rows, norm.epsilon)
        multiply_norm(
            step.launcher,
            weight,
            inputs,
            step.scratch.sums,
            self._model.plans.plan(weight, inputs.rows, quantized=True),
            begun,
            residual.address,
            norm.weight,
            self._model.counters,
        )
        return Residual(address=residual.address, begun=begun)

    def _turns_norm(
        self, step: Step, residual: Residual, norm: BoundNorm, weight: LinearWeight
    ) -> bool:
        """Whether the norm of the stream is turned on its way out: of usual layers."""
        is_plain = not (residual.bias or residual.post or residual.norm) and residual.scale == 1.0
        is_usual = is_plain and not (norm.is_layer_norm or norm.bias or step.shape.adapter_tiles)
        alone = self._model.collectives is None
        return alone and is_usual and self._turns(step, weight) and takes_norm(self._hidden)

    def _norm(
        self,
        step: Step,
        residual: Residual,
        norm: BoundNorm | None,
        output: Activation,
        row_index: int = 0,
        output_scale: float = 1.0,
    ) -> None:
        """Add what is pending to the stream and write its norm, of all rows or of a list.

        Without a norm the stream itself is written.
        """
        if (ranks := self._model.collectives) is not None:
            fused = output_scale == 1.0 and ranks.takes_norm(step, residual, norm, self._hidden)
            if fused and norm is not None:
                ranks.norm(step, residual, norm, output, self._hidden, row_index)
                return
            ranks.settle(step, residual)
        if (own := residual.take_norm()) is not None:
            self._settle(step, residual, own)
            if norm is None and isinstance(output, Plain):
                return  # where the stream has been written already
        added, added_bias, added_scale, post = residual.take_pending()
        residual_norm(
            step.launcher,
            residual.address,
            output.rows,
            self._hidden,
            norm.weight if norm else None,
            norm.epsilon if norm else 0.0,
            output,
            added=added,
            row_index_address=row_index,
            added_bias_address=added_bias,
            added_scale=added_scale,
            post=post,
            is_layer_norm=norm is not None and norm.is_layer_norm,
            norm_bias_address=norm.bias if norm else 0,
            output_scale=output_scale,
        )

    def _settle(self, step: Step, residual: Residual, norm: BoundNorm) -> None:
        """Add what is pending; the norm of all is the stream from here on, and stored as inputs."""
        added, added_bias, added_scale, _ = residual.take_pending()
        stream_norm(
            step.launcher,
            residual.address,
            self._hidden,
            norm.weight,
            norm.epsilon,
            step.scratch.plain(step.shape.rows, self._hidden),
            added=added,
            added_bias_address=added_bias,
            added_scale=added_scale,
            norm_bias_address=norm.bias,
        )

    def _multiply(
        self,
        step: Step,
        weight: LinearWeight,
        inputs: Activation | Turned | Begun,
        address: int = 0,
        max_splits: int | None = None,
        *,
        exact: bool = False,
    ) -> Partials:
        """Leave the sums of the product, float32, at ``address``, or where sums of a step go.

        ``exact``: its 16-bit inputs are not rounded, however many rows there are.
        """
        address = address or step.scratch.sums
        if isinstance(inputs, Begun):
            plan = self._model.plans.plan(weight, inputs.rows, quantized=True)
            return multiply_begun(step.launcher, weight, inputs, address, plan)
        if isinstance(inputs, Plain) and not exact and self._turns(step, weight):
            inputs = self._turned(step, inputs)
        if isinstance(inputs, Turned):
            splits = self._model.plans.turned_splits(weight, inputs.rows)
            self._multiply_turned(step, weight, inputs, address, "fp32", splits)
            return Partials(rows=inputs.rows, columns=weight.rows, splits=splits, values=address)
        if isinstance(inputs, Plain) and self._model.plans.widens(inputs.rows):
            self._multiply_many(step, weight, inputs, address, "fp32", exact=True)
            return Partials(rows=inputs.rows, columns=weight.rows, splits=1, values=address)
        quantized = not isinstance(inputs, Plain)
        plan = self._model.plans.plan(
            weight, inputs.rows, quantized=quantized, max_splits=max_splits
        )
        return linear(step.launcher, weight, inputs, address, plan)

    def _product(
        self, step: Step, linear: BoundLinear, inputs: Activation | Turned | Begun, address: int = 0
    ) -> Partials:
        """Leave the sums of a product that adapters may add to."""
        self._begin_adapting(step, linear, inputs)
        sums = self._multiply(step, linear.weight, inputs, address)
        self._end_adapting(step, linear, inputs, sums)
        return sums

    def _begin_adapting(
        self, step: Step, linear: BoundLinear, inputs: Activation | Turned | Begun
    ) -> None:
        """Begin with what adapters add; the product's kernel fetches weights meanwhile."""
        if step.shape.adapter_tiles:
            assert self._model.adapters is not None
            assert not isinstance(inputs, Turned | Begun)
            self._model.adapters.shrink(step, linear.name, inputs)

    def _end_adapting(
        self,
        step: Step,
        linear: BoundLinear,
        inputs: Activation | Turned | Begun,
        outputs: Partials | Plain,
    ) -> None:
        """Add to a product what the adapters of its rows have for the matrix."""
        if step.shape.adapter_tiles:
            assert self._model.adapters is not None
            assert not isinstance(inputs, Turned | Begun)
            self._model.adapters.expand(step, linear.name, inputs, outputs)

    def _multiply_many(
        self,
        step: Step,
        weight: LinearWeight,
        inputs: Plain | Turned,
        address: int,
        element: str,
        *,
        exact: bool = False,
    ) -> None:
        """Leave the product of many rows, in 8 bits where the step's rounding allows them."""
        if isinstance(inputs, Plain) and not exact and self._turns(step, weight):
            inputs = self._turned(step, inputs)
        if isinstance(inputs, Turned):
            self._multiply_turned(step, weight, inputs, address, element)
            return
        linear_prefill(
            step.launcher,
            weight,
            inputs,
            address,
            element,
            scratch_address=step.scratch.weights,
            scratch_bytes=step.scratch.weights_bytes,
        )

    def _turned(self, step: Step, inputs: Plain) -> Turned:
        turned = step.scratch.turned(inputs.rows, inputs.columns)
        turn_activations(step.launcher, inputs, turned)
        return turned

    def _multiply_turned(
        self,
        step: Step,
        weight: LinearWeight,
        inputs: Turned,
        address: int,
        element: str,
        splits: int = 1,
    ) -> None:
        kept, plans = self._model.kept_weights.of(weight), self._model.plans
        if splits > 1 or not plans.widens(inputs.rows):
            assert kept is not None, "few rows are turned where all matrices are kept"
            multiply = linear_8bit_alike if plans.turns_all else linear_8bit_split
            multiply(step.launcher, weight, inputs, address, element, kept=kept, splits=splits)
            return
        linear_8bit(
            step.launcher,
            weight,
            inputs,
            address,
            element,
            maxima_address=self._model.row_maxima.of(weight),
            scratch_address=step.scratch.weights,
            scratch_bytes=inputs.codes - step.scratch.weights,
            kept=kept,
        )
