"""A request's place in a trace, by W3C's rules: who asked, and what our own spans are called.

https://www.w3.org/TR/trace-context/. Nothing of OpenTelemetry is imported here; ``tracing`` hands
what has ended to it.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
SpanKind = Literal["server", "internal"]


@record
class Place:
    """Where a span stands: in which trace, which it is, and which it belongs to."""

    trace_id: int
    """128 bits."""
    span_id: int
    """64 bits."""
    parent_id: int | None = None

    @property
    def trace_hex(self) -> str:
        return f"{self.trace_id:032x}"

    def child(self) -> Place:
        """Return a fresh place below this one."""
        return Place(trace_id=self.trace_id, span_id=_fresh(8), parent_id=self.span_id)


@record
class Span:
    """A piece of work that has ended."""

    name: str
    place: Place
    start_ns: int
    """Unix nanoseconds."""
    end_ns: int
    kind: SpanKind = "internal"
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    error: str = ""
    """What went wrong; empty where nothing did."""


def place_of(traceparent: bytes, ratio: float) -> Place | None:
    """Return a request's own place; None where it is not to be traced.

    Args:
        traceparent: The header; empty, or anything that a client may write.
        ratio: Share of requests to trace where the client does not say.
    """
    known = _TRACEPARENT.fullmatch(traceparent)
    if known is not None:
        trace_id, parent_id = int(known[1], 16), int(known[2], 16)
        if trace_id and parent_id:  # zeros mean nobody
            if not int(known[3], 16) & _SAMPLED:
                return None
            return Place(trace_id=trace_id, span_id=_fresh(8), parent_id=parent_id)
    if _fresh(4) > ratio * 2**32:
        return None
    return Place(trace_id=_fresh(16), span_id=_fresh(8))


def unix_ns(moment: float) -> int:
    """Return the Unix time in nanoseconds of a moment on ``time.perf_counter``."""
    return time.time_ns() - int((time.perf_counter() - moment) * 1e9)


def _fresh(num_bytes: int) -> int:
    """Return a random number that is not zero."""
    return int.from_bytes(os.urandom(num_bytes)) or 1
