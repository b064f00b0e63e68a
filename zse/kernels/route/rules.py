"""How a router's logits become a choice of experts, as every implementation understands it."""

from __future__ import annotations

from typing import Protocol

SCORINGS = ("softmax", "softmax_chosen", "sigmoid")
"""What becomes of logits: a softmax over all experts, or over the chosen ones alone, or a sigmoid
of each. Kernels know them by number."""
MAX_EXPERTS = 512
"""Experts that a choice is made of."""
MAX_CHOSEN = 32
"""Experts that are chosen for a token."""
MAX_GROUPS = 16
"""Groups of experts of which the best are chosen."""
SIGMOID_FLOOR = 1e-20
"""Added to the sum of sigmoids that weights are divided by: it may be zero."""


class RoutingRules(Protocol):
    """The numbers of a choice, named as in ``zse.models.layer_spec.ExpertsSpec``."""

    @property
    def num_experts(self) -> int: ...

    @property
    def experts_per_token(self) -> int: ...

    @property
    def scoring(self) -> str:
        """One of ``SCORINGS``."""

    @property
    def num_groups(self) -> int:
        """Groups of as many experts each, of which the best are chosen first; 1 for none."""

    @property
    def groups_per_token(self) -> int: ...

    @property
    def scores_in_group(self) -> int:
        """A group's score is the sum of so many of its best."""

    @property
    def normalizes_weights(self) -> bool: ...

    @property
    def weight_scale(self) -> float: ...
