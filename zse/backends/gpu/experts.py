"""Mixtures of experts as kernel launches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Added, Residual
from zse.backends.gpu.products import Products
from zse.kernels.experts.launch import (
    combine,
    direct_products,
    grouped_products,
    pair_products,
)
from zse.kernels.experts.variants import is_sorted
from zse.kernels.gate_up.launch import activate
from zse.kernels.layout import Partials, Plain, Quantized
from zse.kernels.norm.launch import PostNorm, sums_norm
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

    from zse.backends.gpu.forward import Deferred, Step
    from zse.backends.gpu.mixture import Mixture, MixtureArea, SharedMatrices
    from zse.backends.gpu.mixture_plans import DirectForms, MixturePlans
    from zse.backends.gpu.weights import BoundLinear, BoundNorm
    from zse.backends.handles import ExpertWeights
    from zse.kernels.layout import Activation
    from zse.kernels.route.launch import Choice
    from zse.models.layer_spec import ExpertsSpec, LinearSpec, MLPSpec


class ExpertOperations(Products):
    """The operations of mixtures of experts.

    A few rows go through four kernels: the norm, which chooses, the products up, the activation
    and the products down, which leave summands for the next norm. More rows are sorted by expert,
    so that those of one share its matrices: by int8 activations where these may be rounded, else
    by 16-bit ones, and what is made of them is added to the stream.
    """

    @property
    def _plans(self) -> MixturePlans:
        """Those of steps as they are made now."""
        assert self._model.plans.mixtures is not None
        return self._model.plans.mixtures

    def experts(
        self, step: Step, residual: Residual, weights: ExpertWeights, experts: ExpertsSpec
    ) -> Added:
        """Leave what the experts of each row make of its norm."""
        mixture = self._model.mixtures[experts.router.weight.name]
        router = _router(mixture, weights, experts)
        few = self._plans.takes_few(mixture, step.shape.rows, quantized=step.quantized)
        forms = None if few else self._plans.direct_forms(mixture, step.shape)
        chooses = few or (forms is not None and forms.chooses)
        if (ranks := self._model.collectives) is not None and chooses:
            ranks.settle(step, residual)  # the norm that chooses adds what is pending
        chooses = chooses and residual.post is None
        if few and chooses:
            added = self._few(step, residual, weights, router, mixture, experts.expert)
        elif forms is not None:
            inputs = self._expert_inputs(step, mixture, step.shape.rows, mixture.hidden)
            if chooses:
                self._choose_few(step, residual, weights, router, mixture, inputs)
            else:
                self._choose_many(step, residual, weights, router, mixture, inputs)
            added = self._direct(step, mixture, inputs, experts.expert, forms)
        else:
            added = self._many(step, residual, weights, router, mixture, experts)
        if weights.post_norm is None:
            return added
        sums = self._over_ranks(step, self._sums_of(step, added))
        return Added(sums=self._normed_sums(step, sums, weights.post_norm), is_whole=True)

    def dense(
        self, step: Step, inputs: Deferred, linear: BoundLinear, post_norm: BoundNorm | None
    ) -> Added:
        """Leave the norm of what a dense MLP makes, where there is room behind it."""
        assert post_norm is not None
        output = self._form(step, linear.weight, step.shape.rows, can_quantize=inputs.can_quantize)
        inputs.write(output)
        sums, bias = self._product(step, linear, output, step.scratch.beside), linear.bias
        if self._model.collectives is not None:
            sums, bias = self._over_ranks(step, sums, bias), 0
        return Added(sums=self._normed_sums(step, sums, post_norm, bias), is_whole=True)

    def add(
        self,
        step: Step,
        residual: Residual,
        added: Sequence[Added],
        scale: float,
        post_norm: BoundNorm | None,
    ) -> Residual:
        """Leave summands for the next norm, or add what is not summed yet to the stream."""
        *beside, last = added
        post = post_norm and PostNorm(address=post_norm.weight, epsilon=post_norm.epsilon)
        if beside:  # what the experts add lies behind what the dense MLP does
            assert beside[0].sums is not None
            if not last.is_whole:
                self._over_ranks(step, self._sums_of(step, last))
            both = replace(beside[0].sums, splits=2)
            return Residual(address=residual.address, pending=both, scale=scale, post=post)
        is_share = self._model.collectives is not None and not last.is_whole
        if last.sums is not None or post is not None or is_share:
            sums = self._sums_of(step, last)
            return Residual(
                address=residual.address, pending=sums, scale=scale, post=post, is_share=is_share
            )
        assert last.pairs is not None
        assert last.choice is not None
        combine(
            step.launcher,
            residual.address,
            last.pairs,
            last.choice,
            shared=last.shared,
            scale=scale,
        )
        return Residual(address=residual.address)

    def _sums_of(self, step: Step, added: Added) -> Partials:
        """Return the summands of what experts add."""
        if added.sums is not None:
            return added.sums
        assert added.pairs is not None
        assert added.choice is not None
        sums = Partials(
            rows=added.choice.rows, columns=self._hidden, splits=1, values=added.sums_address
        )
        combine(
            step.launcher, sums.values, added.pairs, added.choice, shared=added.shared, adds=False
        )
        return sums

    def _over_ranks(self, step: Step, sums: Partials, bias_address: int = 0) -> Partials:
        """Return the sum of what all ranks have, in place of the first summand."""
        ranks = self._model.collectives
        return sums if ranks is None else ranks.sum(step.launcher, sums, bias_address)

    def _normed_sums(
        self, step: Step, sums: Partials, norm: BoundNorm, bias_address: int = 0
    ) -> Partials:
        return sums_norm(step.launcher, sums, norm.weight, norm.epsilon, bias_address=bias_address)

    def _behind_dense(self, step: Step) -> int:
        """Return where what experts add follows what a dense MLP does, as one more summand."""
        return step.scratch.beside + step.shape.rows * self._hidden * 4

    # --- a few rows ------------------------------------------------------------------------------

    def _few(
        self,
        step: Step,
        residual: Residual,
        weights: ExpertWeights,
        router: Router,
        mixture: Mixture,
        mlp: MLPSpec,
    ) -> Added:
        plans, rows = self._plans, step.shape.rows
        choice = plans.area(mixture, rows).choice(step.scratch.experts)
        inputs = self._expert_inputs(step, mixture, rows, mixture.up.columns)
        self._choose_few(step, residual, weights, router, mixture, inputs)
        plan = plans.pair_plan(mixture.up, choice.pairs)
        sums = step.scratch.sums
        joined = pair_products(step.launcher, mixture.up, inputs, choice, sums, plan, is_down=False)
        self._adapt(step, mlp.up, choice, inputs, joined)
        hidden = self._expert_inputs(step, mixture, choice.pairs, mixture.width)
        self._activate(step, joined, hidden, mlp)
        plan = plans.pair_plan(mixture.down, choice.pairs, max_splits=1)
        if mixture.beside is not None:
            sums = self._behind_dense(step)
        added = pair_products(step.launcher, mixture.down, hidden, choice, sums, plan, is_down=True)
        self._adapt(step, mlp.down, choice, hidden, added, is_down=True)
        return Added(sums=added)

    def _choose_few(
        self,
        step: Step,
        residual: Residual,
        weights: ExpertWeights,
        router: Router,
        mixture: Mixture,
        inputs: Activation,
    ) -> None:
        """Write the norm of a few rows, and choose their experts, in one kernel."""
        norm, router_norm = weights.norm, weights.router_norm
        assert norm is not None  # which it is fused with
        area = self._plans.area(mixture, step.shape.rows)
        pending, bias, scale, _ = residual.take_pending()
        norm_route(
            step.launcher,
            residual.address,
            Pending(added=pending, bias=bias, scale=scale),
            norm.weight,
            norm.epsilon,
            router,
            RouterMatrix(
                weights=mixture.router.weights, gate=mixture.gate.weights if mixture.gate else 0
            ),
            inputs,
            area.choice(step.scratch.experts),
            step.scratch.experts + area.logits,
            self._model.counters,
            router_norm_address=router_norm.weight if router_norm else 0,
        )

    def _adapt(
        self,
        step: Step,
        stack: LinearSpec,
        choice: Choice,
        inputs: Activation,
        outputs: Partials | Plain,
        *,
        is_down: bool = False,
    ) -> None:
        """Add to products of experts what the adapters of their rows have for them."""
        if step.shape.adapter_tiles:
            assert self._model.adapters is not None
            name = stack.weight.name
            self._model.adapters.add_to_pairs(step, name, choice, inputs, outputs, is_down=is_down)

    def _expert_inputs(self, step: Step, mixture: Mixture, rows: int, columns: int) -> Activation:
        """Return where activations go in the form that the kernels of a few rows read."""
        plain = mixture.up.stack.scheme in {"bf16", "fp16"}
        return (step.scratch.plain if plain else step.scratch.quantized)(rows, columns)

    # --- rows of an expert together --------------------------------------------------------------

    def _direct(
        self, step: Step, mixture: Mixture, inputs: Activation, mlp: MLPSpec, forms: DirectForms
    ) -> Added:
        """Leave what the experts of some rows make of int8 activations, as summands."""
        area, start = self._plans.area(mixture, step.shape.rows), step.scratch.experts
        choice, grouping, sums = area.choice(start), area.grouping(start), step.scratch.sums
        assert isinstance(inputs, Quantized)
        if is_sorted(forms.up):
            group_pairs(step.launcher, choice, grouping)
        joined = direct_products(
            step.launcher, mixture.up, inputs, choice, grouping, sums, forms.up, is_down=False
        )
        self._adapt(step, mlp.up, choice, inputs, joined)
        hidden = step.scratch.quantized(choice.pairs, mixture.width)
        self._activate(step, joined, hidden, mlp)
        if mixture.beside is not None:
            sums = self._behind_dense(step)
        added = direct_products(
            step.launcher, mixture.down, hidden, choice, grouping, sums, forms.down, is_down=True
        )
        self._adapt(step, mlp.down, choice, hidden, added, is_down=True)
        return Added(sums=added)

    # --- many rows -------------------------------------------------------------------------------

    def _choose_many(
        self,
        step: Step,
        residual: Residual,
        weights: ExpertWeights,
        router: Router,
        mixture: Mixture,
        inputs: Activation,
    ) -> None:
        """Write the norm of many rows, and choose their experts by what the router reads."""
        start = step.scratch.experts
        area = self._plans.area(mixture, step.shape.rows)
        read = step.scratch.plain(step.shape.rows, mixture.hidden)
        self._norm(step, residual, weights.router_norm or weights.norm, read)
        logits = self._multiply(step, mixture.router, read, exact=True)
        if weights.router_norm is not None:
            self._norm(step, residual, weights.norm, read)
        gate = None
        if mixture.gate is not None:
            gate = self._multiply(step, mixture.gate, read, start + area.logits, exact=True)
        choose(step.launcher, router, logits, area.choice(start), gate)
        if isinstance(inputs, Quantized):  # in place of what the router read
            self._norm(step, residual, weights.norm, inputs)

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
        area = self._plans.area(mixture, rows)
        choice, grouping = area.choice(start), area.grouping(start)
        inputs = step.scratch.plain(rows, mixture.hidden)
        self._choose_many(step, residual, weights, router, mixture, inputs)
        group_pairs(step.launcher, choice, grouping)
        shared = None
        if mixture.shared is not None:
            assert experts.shared is not None
            shared = self._shared(step, inputs, mixture.shared, experts.shared, weights, area)
        sums, tile = step.scratch.sums, self._plans.pair_tile
        joined = grouped_products(
            step.launcher, mixture.up, inputs, choice, grouping, sums, is_down=False, tile=tile
        )
        self._adapt(step, experts.expert.up, choice, inputs, joined)
        hidden = step.scratch.plain(choice.pairs, mixture.width)
        self._activate(step, joined, hidden, experts.expert)
        pairs = grouped_products(
            step.launcher, mixture.down, hidden, choice, grouping, sums, is_down=True, tile=tile
        )
        self._adapt(step, experts.expert.down, choice, hidden, pairs, is_down=True)
        added = start + area.sums if mixture.beside is None else self._behind_dense(step)
        return Added(pairs=pairs, choice=choice, shared=shared, sums_address=added)

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
        assert weights.shared_up is not None
        assert weights.shared_down is not None
        joined: Plain | Partials
        self._begin_adapting(step, weights.shared_up, inputs)
        if self._model.plans.widens(inputs.rows):
            joined = Plain(rows=inputs.rows, columns=matrices.up.rows, values=step.scratch.sums)
            self._multiply_many(step, matrices.up, inputs, joined.values, "bf16")
        else:
            joined = self._multiply(step, matrices.up, inputs)
        self._end_adapting(step, weights.shared_up, inputs, joined)
        start = step.scratch.experts
        hidden = Plain(
            rows=inputs.rows, columns=matrices.down.columns, values=start + area.shared_hidden
        )
        self._activate(step, joined, hidden, mlp, weights.shared_up.bias)
        return self._product(step, weights.shared_down, hidden, start + area.shared_sums)

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
