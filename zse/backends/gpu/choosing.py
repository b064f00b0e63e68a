"""The end of a step: logits of the wanted rows, and tokens by them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.products import Products
from zse.kernels.layout import Plain
from zse.kernels.linear.launch_8bit import linear_8bit_alike, multiply_kept
from zse.kernels.linear.plan import MAX_ROWS
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.lm_head_sample.launch import cap_logits, sample

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Residual, Step
    from zse.backends.gpu.model import DeviceModel
    from zse.kernels.layout import Activation, Turned
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.lm_head_sample.arrays import SampledArrays
    from zse.models.spec import HeadSpec


class Choosing(Products):
    """Products, and the choice of tokens by the last of them; tokens go to ``results``."""

    def __init__(self, model: DeviceModel, results: SampledArrays) -> None:
        super().__init__(model)
        self.ends = model.ends
        self._results = results

    def write_logits(self, step: Step, residual: Residual, head: HeadSpec) -> None:
        """Write float32 logits of the wanted rows, [wanted, vocab]."""
        self._model.passes.before_head()
        weight: LinearWeight = self.ends.head
        kept = self._kept_head(step)
        output = self._head_inputs(step, is_turned=kept is not None)
        wanted = step.inputs.wanted
        # The norm of some rows leaves the stream as it is; one of the stream itself settles it.
        again = residual if residual.norm is not None else replace(residual)
        self._norm(step, residual, self.ends.final_norm, output, wanted, head.logit_scale)
        logits, own = step.scratch.logits, head.rows
        vocab = self._model.spec.vocab_size
        if kept is not None and isinstance(output, Plain):
            self._multiply_head(step, weight, self._turned(step, output), logits, kept)
        elif own is None:
            self._multiply(step, weight, output, logits, max_splits=1, exact=True)
        else:
            part, ranks = step.scratch.own_logits, self._model.collectives
            assert ranks is not None
            self._multiply(step, weight, output, part, max_splits=1, exact=True)
            ranks.join_columns(
                step.launcher, part, logits, rows=output.rows, columns=vocab, own=own
            )
        if step.tells_states and not isinstance(output, Plain):
            states = step.scratch.plain(output.rows, output.columns)  # where nobody reads any more
            self._norm(step, again, self.ends.final_norm, states, wanted, head.logit_scale)
        if head.softcap is not None:
            cap_logits(step.launcher, logits, rows=output.rows, vocab=vocab, softcap=head.softcap)

    def _multiply_head(
        self, step: Step, weight: LinearWeight, inputs: Turned, logits: int, kept: Turned
    ) -> None:
        if self._model.plans.turns_all:
            linear_8bit_alike(step.launcher, weight, inputs, logits, "fp32", kept=kept, splits=1)
        else:
            multiply_kept(step.launcher, weight, inputs, logits, "fp32", kept=kept)

    def _kept_head(self, step: Step) -> Turned | None:
        """Return the head as a decode step reads it beside turned matrices; None where it is not.

        The norm of fewer rows writes what the head reads without a pass over it. Rows whose bits
        may depend on nothing else read it where all matrices are kept, the head with them.
        """
        plans = self._model.plans
        is_wide = step.rounding == "tokens" and not step.shape.prefill_rows
        if not is_wide or (plans.deterministic and not plans.turns_all):
            return None
        return self._model.kept_weights.of(self.ends.head)

    def _head_inputs(self, step: Step, *, is_turned: bool) -> Activation:
        """Return where the wanted rows are to be written, in the form that the head reads best.

        Where bits may not depend on the others of a step, nor on whether states are told to the
        host, which get 16 bits, the head reads int8 rows always, or never. Where matrices read
        turned rows of a decode step, a head that is not turned reads int8 ones as it does in steps
        of fewer rows.
        """
        weight, rows, model = self.ends.head, step.shape.wanted, self._model
        if model.plans.deterministic:
            can_quantize = step.rounding != "none" and model.collectives is None
        else:
            is_wide = step.rounding == "tokens" and not step.shape.prefill_rows
            can_quantize = step.quantized or (is_wide and rows <= MAX_ROWS)
        if can_quantize and not is_turned and supports_quantized(weight):
            return step.scratch.quantized(rows, weight.columns)
        return step.scratch.plain(rows, weight.columns)

    def lm_head_sample(self, step: Step, residual: Residual, head: HeadSpec) -> None:
        """Choose tokens, or only write the logits of a step with masks, which come later."""
        if self._model.plans.leaves_states:
            rows = Plain(rows=step.shape.rows, columns=self._hidden, values=step.scratch.left)
            self._model.passes.before_head()
            self._norm(step, residual, self.ends.final_norm, rows)
        if not step.shape.wanted:
            return
        self.write_logits(step, residual, head)
        if not step.sampling.masked:
            self.choose(step)

    def choose(self, step: Step) -> None:
        """Choose tokens by the logits of a step, and by its masks if it has any."""
        sample(
            step.launcher,
            step.scratch.logits,
            rows=step.shape.wanted,
            vocab=self._model.spec.vocab_size,
            arrays=step.inputs.sampling,
            kind=step.sampling,
            masks_address=step.scratch.masks,
            num_adjustments=step.shape.entries,
            workspace_address=step.scratch.sampling,
            outputs=self._results,
        )
