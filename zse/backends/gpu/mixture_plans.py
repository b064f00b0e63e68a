"""How the mixtures of experts of a model are computed in each shape of a step, and their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.mixture import area_of, mixtures_of
from zse.backends.gpu.scratch import MixtureBytes, activation_bytes
from zse.kernels.experts.plan import ROUTED_ROWS, plan_direct, plan_pairs
from zse.kernels.experts.variants import PAIR_TILES
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.mixture import Mixture, MixtureArea
    from zse.backends.gpu.plans import StepPlans
    from zse.kernels.experts.plan import PairPlan
    from zse.kernels.experts.weight import StackedWeight
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.variant import Variant
    from zse.models.spec import ModelSpec


@record
class DirectForms:
    """How rows of one expert are multiplied together by int8 activations."""

    up: Variant
    down: Variant
    chooses: bool
    """Whether the norm of the rows chooses their experts."""


class MixturePlans:
    """What is chosen for each shape of a step; addresses of ``linears`` are not looked at."""

    counters_bytes = ROUTED_ROWS * 4
    """Of the numbers by which the choosing finds its last part."""

    def __init__(
        self, spec: ModelSpec, linears: Mapping[str, LinearWeight], plans: StepPlans
    ) -> None:
        experts = [layer.experts.expert for layer in spec.layers if layer.experts is not None]
        self.stacks = frozenset(
            matrix.weight.name for each in experts for matrix in (each.up, each.down)
        )
        """Names of the experts' matrices."""
        self._mixtures = tuple(dict.fromkeys(mixtures_of(spec, _unplaced(linears), {}).values()))
        self._plans = plans
        self._pair_plans: dict[tuple[object, ...], PairPlan] = {}
        self._direct_forms: dict[tuple[object, ...], DirectForms | None] = {}
        self._areas: dict[tuple[object, ...], MixtureArea] = {}

    def pair_plan(
        self, weight: StackedWeight, pairs: int, *, max_splits: int | None = None
    ) -> PairPlan:
        """Return how a few tokens are multiplied with experts; looked up once for each form."""
        key = (*weight.stack.form, pairs, max_splits)
        if key not in self._pair_plans:
            self._pair_plans[key] = plan_pairs(
                weight, pairs, self._plans.facts, max_splits=max_splits
            )
        return self._pair_plans[key]

    def takes_few(self, mixture: Mixture, rows: int, *, quantized: bool) -> bool:
        """Return whether each pair of so many rows reads its expert's matrices for itself.

        None does where the bits of a row may not depend on how many there are.
        """
        return not self._plans.deterministic and mixture.takes_few(rows, quantized=quantized)

    def direct_forms(self, mixture: Mixture, shape: InputShape) -> DirectForms | None:
        """Return how those of an expert are multiplied together by int8 activations.

        None where they are not: of many rows, of prompts, and where nothing may be rounded.
        """
        is_rounded = self._plans.rounding(shape) != "none" and not shape.prefill_rows
        if not is_rounded or self._plans.deterministic or mixture.shared is not None:
            return None
        key = (mixture.up.stack.form, mixture.down.stack.form, mixture.slots, shape.rows)
        if key not in self._direct_forms:
            self._direct_forms[key] = self._forms_of(mixture, shape.rows)
        return self._direct_forms[key]

    def _forms_of(self, mixture: Mixture, rows: int) -> DirectForms | None:
        pairs, target = rows * mixture.slots, self._plans.facts.target
        up, down = (
            plan_direct(each, rows, pairs, mixture.groups, target)
            for each in (mixture.up, mixture.down)
        )
        if up is None or down is None:
            return None
        return DirectForms(up=up, down=down, chooses=mixture.fuses_norm and rows <= ROUTED_ROWS)

    @property
    def pair_tile(self) -> int:
        """Pairs of one expert that are multiplied together; 0: by how many there are."""
        return PAIR_TILES[0] if self._plans.deterministic else 0

    def area(self, mixture: Mixture, rows: int) -> MixtureArea:
        """Return where a routing lies; looked up once for each form."""
        key = (mixture.slots, mixture.groups, mixture.hidden, mixture.shared is None, rows)
        if key not in self._areas:
            shared_bytes = 0
            if mixture.shared is not None:
                shared_bytes = self._plans.product_bytes(mixture.shared.down, rows)
            self._areas[key] = area_of(mixture, rows, shared_bytes)
        return self._areas[key]

    def scratch(self, shape: InputShape) -> MixtureBytes:
        """Return the memory that the widest mixture takes in a step."""
        rows, mixtures = shape.rows, self._mixtures
        return MixtureBytes(
            activations=max(activation_bytes(rows * each.slots, each.width) for each in mixtures),
            sums=max(self._sums_bytes(each, shape) for each in mixtures),
            routing=max(self.area(each, rows).length_bytes for each in mixtures),
            beside=max(self._beside_bytes(each, shape) for each in mixtures),
        )

    def _sums_bytes(self, mixture: Mixture, shape: InputShape) -> int:
        """Return the bytes of the products of experts, whichever kernels make them."""
        pairs = shape.rows * mixture.slots
        widest = pairs * max(mixture.up.rows, mixture.down.rows) * 2
        quantized = self._plans.reads_quantized(shape)
        if self.direct_forms(mixture, shape) is not None:
            widest *= 2  # sums of 32 bits
        if not self.takes_few(mixture, shape.rows, quantized=quantized):
            return widest
        up = self.pair_plan(mixture.up, pairs).output_bytes
        down = self.pair_plan(mixture.down, pairs, max_splits=1).output_bytes
        return max(widest, up, down)

    def _beside_bytes(self, mixture: Mixture, shape: InputShape) -> int:
        """Return the bytes of what a dense MLP and the experts beside it add."""
        if mixture.beside is None:
            return 0
        rows = shape.rows
        experts = one = rows * mixture.hidden * 4
        if self.takes_few(mixture, rows, quantized=self._plans.reads_quantized(shape)):
            pairs = rows * mixture.slots
            experts = self.pair_plan(mixture.down, pairs, max_splits=1).output_bytes
        elif self.direct_forms(mixture, shape) is not None:
            experts = one * mixture.slots
        return max(self._plans.sums_bytes(mixture.beside, shape), one + experts)


def _unplaced(linears: Mapping[str, LinearWeight]) -> dict[str, LinearWeight]:
    """Return matrices without their addresses, so that those of one form are equal."""
    return {name: replace(each, weights=0, scales=0) for name, each in linears.items()}
