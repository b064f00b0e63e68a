"""Mixtures of experts as kernel launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.backends.gpu.forward import Added, Residual
from zse.backends.gpu.plans import BATCH_ROWS
from zse.backends.gpu.products import Products
from zse.errors import UnsupportedModelError
from zse.kernels.experts.launch import combine, grouped_products, pair_products
from zse.kernels.gate_up.launch import activate
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.launch import PostNorm
from zse.kernels.route.launch import (
    Pending,
    Router,
    RouterMatrix,
    choose,
    group_pairs,
    norm_route,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.mixture import Mixture, MixtureArea, SharedMatrices
    from zse.backends.gpu.weights import BoundNorm
    from zse.backends.operations import ExpertWeights
    from zse.kernels.layout import Activation
    from zse.models.spec import ExpertsSpec, MLPSpec


class ExpertOperations(Products):
    """The operations of mixtures of experts.

    A few rows go through four kernels: the norm, which chooses, the products up, the activation
    and the products down, which leave summands for the next norm. More rows are sorted by expert,
    so that those of one share its matrices, and what is made of them is added to the stream.
    """

    def experts(
        self, step: Step, residual: Residual, weights: ExpertWeights, experts: ExpertsSpec
    ) -> Added:
        """Leave what the experts of each row make of its norm."""
        mixture = self._model.mixtures[experts.router.weight.name]
        router = _router(mixture, weights, experts)
        if residual.post is None and mixture.takes_few(step.shape.rows, quantized=step.quantized):
            assert weights.norm is not None  # which it is fused with
            return self._few(step, residual, weights.norm, router, mixture, experts.expert)
        return self._many(step, residual, weights, router, mixture, experts)

    def dense(self, *_: Any) -> Added:
        raise UnsupportedModelError("a GPU does not compute a dense MLP beside experts")

    def add(
        self,
        step: Step,
        residual: Residual,
        added: Sequence[Added],
        scale: float,
        post_norm: BoundNorm | None,
    ) -> Residual:
        """Leave summands for the next norm, or add what is not summed yet to the stream."""
        (one,) = added
        post = post_norm and PostNorm(address=post_norm.weight, epsilon=post_norm.epsilon)
        if one.sums is not None:
            return Residual(address=residual.address, pending=one.sums, scale=scale, post=post)
        assert one.pairs is not None
        assert one.choice is not None
        if post is None:
            combine(
                step.launcher,
                residual.address,
                one.pairs,
                one.choice,
                shared=one.shared,
                scale=scale,
            )
            return Residual(address=residual.address)
        sums = Partials(
            rows=one.choice.rows, columns=self._hidden, splits=1, values=one.sums_address
        )
        combine(step.launcher, sums.values, one.pairs, one.choice, shared=one.shared, adds=False)
        return Residual(address=residual.address, pending=sums, scale=scale, post=post)

    # --- a few rows ------------------------------------------------------------------------------

    def _few(
        self,
        step: Step,
        residual: Residual,
        norm: BoundNorm,
        router: Router,
        mixture: Mixture,
        mlp: MLPSpec,
    ) -> Added:
        plans, rows = self._model.plans, step.shape.rows
        area = plans.mixture_area(mixture, rows)
        choice = area.choice(step.scratch.experts)
        added, bias, scale, _ = residual.take_pending()
        inputs = self._expert_inputs(step, mixture, rows, mixture.up.columns)
        norm_route(
            step.launcher,
            residual.address,
            Pending(added=added, bias=bias, scale=scale),
            norm.weight,
            norm.epsilon,
            router,
            RouterMatrix(
                weights=mixture.router.weights, gate=mixture.gate.weights if mixture.gate else 0
            ),
            inputs,
            choice,
            step.scratch.experts + area.logits,
            self._model.counters,
        )
        plan = plans.pair_plan(mixture.up, choice.pairs)
        sums = step.scratch.sums
        joined = pair_products(step.launcher, mixture.up, inputs, choice, sums, plan, is_down=False)
        hidden = self._expert_inputs(step, mixture, choice.pairs, mixture.width)
        self._activate(step, joined, hidden, mlp)
        plan = plans.pair_plan(mixture.down, choice.pairs, max_splits=1)
        return Added(
            sums=pair_products(
                step.launcher, mixture.down, hidden, choice, sums, plan, is_down=True
            )
        )

    def _expert_inputs(self, step: Step, mixture: Mixture, rows: int, columns: int) -> Activation:
        """Return where activations go in the form that the kernels of a few rows read."""
        plain = mixture.up.stack.scheme in {"bf16", "fp16"}
        return (step.scratch.plain if plain else step.scratch.quantized)(rows, columns)

    # --- many rows -------------------------------------------------------------------------------

    def _many(
        self,
        step: Step,
        residual: Residual,
        weights: ExpertWeights,
        router: Router,
        mixture: Mixture,
        experts: ExpertsSpec,
    ) -> Added:
        rows, start = step.shape.rows, step.scratch.experts
        area = self._model.plans.mixture_area(mixture, rows)
        choice, grouping = area.choice(start), area.grouping(start)
        inputs = step.scratch.plain(rows, mixture.hidden)
        self._norm(step, residual, weights.router_norm or weights.norm, inputs)
        logits = self._multiply(step, mixture.router, inputs)
        if weights.router_norm is not None:
            self._norm(step, residual, weights.norm, inputs)
        gate = None
        if mixture.gate is not None:
            gate = self._multiply(step, mixture.gate, inputs, start + area.logits)
        choose(step.launcher, router, logits, choice, gate)
        group_pairs(step.launcher, choice, grouping)
        shared = None
        if mixture.shared is not None:
            assert experts.shared is not None
            shared = self._shared(step, inputs, mixture.shared, experts.shared, weights, area)
        sums = step.scratch.sums
        joined = grouped_products(
            step.launcher, mixture.up, inputs, choice, grouping, sums, is_down=False
        )
        hidden = step.scratch.plain(choice.pairs, mixture.width)
        self._activate(step, joined, hidden, experts.expert)
        pairs = grouped_products(
            step.launcher, mixture.down, hidden, choice, grouping, sums, is_down=True
        )
        return Added(pairs=pairs, choice=choice, shared=shared, sums_address=start + area.sums)

    def _shared(
        self,
        step: Step,
        inputs: Plain,
        matrices: SharedMatrices,
        mlp: MLPSpec,
        weights: ExpertWeights,
        area: MixtureArea,
    ) -> Partials:
        """Leave the summands of a shared expert of another form than the others."""
        joined: Plain | Partials
        if inputs.rows > BATCH_ROWS:
            joined = Plain(rows=inputs.rows, columns=matrices.up.rows, values=step.scratch.sums)
            self._multiply_widened(step, matrices.up, inputs, joined.values, "bf16")
        else:
            joined = self._multiply(step, matrices.up, inputs)
        start = step.scratch.experts
        hidden = Plain(
            rows=inputs.rows, columns=matrices.down.columns, values=start + area.shared_hidden
        )
        assert weights.shared_up is not None
        self._activate(step, joined, hidden, mlp, weights.shared_up.bias)
        return self._multiply(step, matrices.down, hidden, start + area.shared_sums)

    def _activate(
        self,
        step: Step,
        joined: Partials | Plain,
        output: Plain | Quantized,
        mlp: MLPSpec,
        bias: int = 0,
    ) -> None:
        activate(
            step.launcher,
            joined,
            output,
            activation=mlp.activation,
            gated=mlp.is_gated,
            bias_address=bias,
            limit=mlp.limit,
        )


def _router(mixture: Mixture, weights: ExpertWeights, experts: ExpertsSpec) -> Router:
    return Router(
        rules=experts,
        bias=weights.router.bias,
        selection_bias=weights.selection_bias or 0,
        expert_scale=weights.expert_scale or 0,
        has_shared_slot=mixture.has_shared,
    )
