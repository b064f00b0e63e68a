"""A mixture of experts: each one's matrices, and the tokens that go through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.torch.activation import activate_rows
from zse.kernels.route.reference import route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.handles import ExpertWeights
    from zse.backends.torch.linear import Linear
    from zse.models.layer_spec import ExpertsSpec


class StackedLinear(NamedTuple):
    """The matrices of all experts, and what is added to their products."""

    matrices: Sequence[Linear]
    bias: torch.Tensor | None
    """float32 [experts, N]."""

    def multiply(self, expert: int, inputs: torch.Tensor, single_rows: int) -> torch.Tensor:
        """Return float32 [M, N] of [M, K], the first ``single_rows`` each on its own."""
        matrix = self.matrices[expert]
        single, joined = inputs[:single_rows], inputs[single_rows:]
        parts = [matrix.each_row(single)] if single_rows else []
        if joined.shape[0]:
            parts.append(matrix.all_rows(joined))
        outputs = torch.cat(parts)
        return outputs if self.bias is None else outputs.add_(self.bias[expert])


def add_experts(
    residual: torch.Tensor, weights: ExpertWeights, experts: ExpertsSpec, single_rows: int
) -> torch.Tensor:
    """Return what the experts add to the stream, float32 [tokens, hidden].

    The bits of each of the first ``single_rows`` depend on that row alone.
    """
    inputs = residual if weights.norm is None else weights.norm(residual)
    routed = inputs if weights.router_norm is None else weights.router_norm(residual)
    logits = weights.router.multiply(routed, single_rows)
    chosen, shares = route(
        logits,
        experts,
        selection_bias=weights.selection_bias,
        expert_scale=weights.expert_scale,
    )
    added = _through_chosen(inputs, chosen, shares, weights, experts, single_rows)
    if experts.shared is not None:
        assert weights.shared_up is not None
        assert weights.shared_down is not None
        joined = weights.shared_up.multiply(inputs, single_rows)
        hidden = activate_rows(joined, experts.shared, single_rows)
        shared = weights.shared_down.multiply(hidden, single_rows)
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
    single_rows: int,
) -> torch.Tensor:
    """Return the weighted sum over each token's experts, added up in the order of its choice."""
    outputs = torch.empty(*chosen.shape, inputs.shape[1])
    for expert in sorted(set(chosen.flatten().tolist())):
        rows, slots = torch.nonzero(chosen == expert, as_tuple=True)
        single = int((rows < single_rows).sum())
        joined = weights.up.multiply(expert, inputs[rows], single)
        hidden = activate_rows(joined, experts.expert, single)
        outputs[rows, slots] = weights.down.multiply(expert, hidden, single)
    added = torch.zeros_like(inputs)
    for slot in range(chosen.shape[1]):
        added += outputs[:, slot] * shares[:, slot : slot + 1]
    return added
