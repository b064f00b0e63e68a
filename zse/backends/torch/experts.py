"""A mixture of experts: each one's matrices, and the tokens that go through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.torch.activation import activate_rows
from zse.backends.torch.adapters import adapted_product, add_expert_adapters
from zse.kernels.route.reference import route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.handles import ExpertWeights
    from zse.backends.torch.linear import Linear
    from zse.backends.torch.step import Step
    from zse.models.layer_spec import ExpertsSpec


class StackedLinear(NamedTuple):
    """The matrices of all experts, and what is added to their products."""

    matrices: Sequence[Linear]
    bias: torch.Tensor | None
    """float32 [experts, N]."""
    name: str
    """What adapters call the stack."""

    def multiply(
        self, expert: int, inputs: torch.Tensor, step: Step, rows: torch.Tensor
    ) -> torch.Tensor:
        """Return float32 [M, N] of [M, K], with what adapters add; ``rows`` are those of the step.

        Those that the step computes each on its own come first.
        """
        outputs = self._plain(expert, inputs, int((rows < step.single_rows).sum()))
        if step.adapts:
            add_expert_adapters(step, self, expert, rows, inputs, outputs)
        return outputs

    def _plain(self, expert: int, inputs: torch.Tensor, single_rows: int) -> torch.Tensor:
        matrix = self.matrices[expert]
        single, joined = inputs[:single_rows], inputs[single_rows:]
        parts = [matrix.each_row(single)] if single_rows else []
        if joined.shape[0]:
            parts.append(matrix.all_rows(joined))
        outputs = torch.cat(parts)
        return outputs if self.bias is None else outputs.add_(self.bias[expert])


def add_experts(
    step: Step, residual: torch.Tensor, weights: ExpertWeights, experts: ExpertsSpec
) -> torch.Tensor:
    """Return what the experts add to the stream, float32 [tokens, hidden].

    The bits of each row that the step computes on its own depend on that row alone.
    """
    single_rows = step.single_rows
    inputs = residual if weights.norm is None else weights.norm(residual)
    routed = inputs if weights.router_norm is None else weights.router_norm(residual)
    logits = weights.router.multiply(routed, single_rows)
    chosen, shares = route(
        logits,
        experts,
        selection_bias=weights.selection_bias,
        expert_scale=weights.expert_scale,
    )
    added = _through_chosen(inputs, chosen, shares, weights, experts, step)
    if experts.shared is not None:
        assert weights.shared_up is not None
        assert weights.shared_down is not None
        joined = adapted_product(step, weights.shared_up, inputs)
        hidden = activate_rows(joined, experts.shared, single_rows)
        shared = adapted_product(step, weights.shared_down, hidden)
        if weights.shared_gate is not None:
            shared.mul_(torch.sigmoid(weights.shared_gate.multiply(inputs, single_rows)))
        added += shared
    return added if weights.post_norm is None else weights.post_norm(added)


def _through_chosen(
    inputs: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
    weights: ExpertWeights,
    experts: ExpertsSpec,
    step: Step,
) -> torch.Tensor:
    """Return the weighted sum over each token's experts, added up in the order of its choice."""
    outputs = torch.empty(*chosen.shape, inputs.shape[1])
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, slots = torch.nonzero(chosen == expert, as_tuple=True)
        joined = weights.up.multiply(expert, inputs[rows], step, rows)
        hidden = activate_rows(joined, experts.expert, int((rows < step.single_rows).sum()))
        outputs[rows, slots] = weights.down.multiply(expert, hidden, step, rows)
    added = torch.zeros_like(inputs)
    for slot in range(chosen.shape[1]):
        added += outputs[:, slot] * shares[:, slot : slot + 1]
    return added
