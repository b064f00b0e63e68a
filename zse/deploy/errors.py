"""What can go wrong on the way to a platform."""

from __future__ import annotations

from zse.errors import BrokenRule, UsageError, ZSEError


class DeployError(ZSEError):
    """A platform or its tool refused what was asked of it."""

    exit_code = 12
    http_status = 502


class ColdStartError(DeployError):
    """The server that is measured did not start, or did not answer."""


class OverBudgetError(DeployError):
    """The start is slower than the budget allows."""

    exit_code = 13
    default_hint = "The table says which phase it was; docs/guides/cold-start.md says what helps."


class DeployRule(BrokenRule):
    """What a ``UsageError`` of a deployment is about."""

    def __call__(self, message: str, *, hint: str = "") -> UsageError:
        return UsageError(message, hint=hint, rule=self)

    UNFIT_IMAGE = "unfit_image"
    """An image cannot do what is asked of it, by what its labels say."""
    UNRENDERABLE_VALUE = "unrenderable_value"
    """A value cannot be written in the language of a file."""
    NO_FITTING_GPU = "no_fitting_gpu"
    """No GPU type of the platform has the memory that the model needs; a ``DeviceError``."""
