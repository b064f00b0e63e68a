"""What a request for a model of a fleet may be told."""

from __future__ import annotations

from typing import Self

from zse.errors import ZSEError


class ModelUnavailableError(ZSEError):
    """A model could not be brought, or not in time; requests for other models are answered."""

    http_status = 503
    error_code = "model_unavailable"
    retry_after_seconds: float = 1.0

    @classmethod
    def of(cls, error: ZSEError, retry_after_seconds: float = 1.0) -> Self:
        """Return an error that says the same: what is raised holds the frames of who asked."""
        told = cls(error.message, hint=error.hint)
        told.retry_after_seconds = max(1.0, retry_after_seconds)
        return told


class SleepingError(ZSEError):
    """An admin put the server to sleep: a request does not wake it, as with vLLM."""

    http_status = 503
    error_code = "server_is_sleeping"
    default_hint = "POST /wake_up wakes it."
