"""What can go wrong on the way to a platform."""

from __future__ import annotations

from zse.errors import DeviceError, UsageError, ZSEError


class DeployError(ZSEError):
    """A platform or its tool refused what was asked of it."""

    exit_code = 12
    http_status = 502


class TemplateMismatchError(DeployError):
    """A template and the values given to it do not name the same things."""


class UnrenderableValueError(UsageError):
    """A value cannot be written in the language of a file."""


class UnfitImageError(UsageError):
    """An image cannot do what is asked of it, by what its labels say."""


class NoFittingGpuError(DeviceError):
    """No GPU type of the platform has the memory that the model needs."""
