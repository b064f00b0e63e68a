"""What can go wrong while a cold start is measured."""

from __future__ import annotations

from zse.deploy.errors import DeployError


class ColdStartError(DeployError):
    """The server that is measured did not start, or did not answer."""


class OverBudgetError(DeployError):
    """The start is slower than the budget allows."""

    exit_code = 13
    default_hint = "The table says which phase it was; docs/guides/cold-start.md says what helps."
