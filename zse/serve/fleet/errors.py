"""What a request for a model of a fleet may be told."""

from __future__ import annotations

from zse.errors import ZSEError


class ModelUnavailableError(ZSEError):
    """A model could not be brought, or not in time; requests for other models are answered."""

    http_status = 503
    error_code = "model_unavailable"
    retry_after_seconds: float = 1.0


class SleepingError(ZSEError):
    """An admin put the server to sleep: a request does not wake it, as with vLLM."""

    http_status = 503
    error_code = "server_is_sleeping"
    default_hint = "POST /wake_up wakes it."
