"""The limits of API keys in a sliding minute."""

from __future__ import annotations

from zse.serve.access.limits import Limits as SlidingWindowRateLimiter

__all__ = ["SlidingWindowRateLimiter"]
