"""GET /api/analytics: what was asked lately, as sums, minute by minute, request by request."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from zse.serve.admin.bodies import BoundedRoute
from zse.serve.admin.guard import Guard
from zse.serve.admin.shapes import Shape
from zse.serve.history import MAX_FACTS, MAX_MINUTES, History, Minute, Outcome
from zse.serve.http.requests import state_of

router = APIRouter(
    route_class=BoundedRoute,
    prefix="/api/analytics",
    tags=["analytics"],
    dependencies=[Depends(Guard("admin"))],
)
Minutes = Annotated[int, Query(ge=1, le=MAX_MINUTES, description="How far back, in minutes.")]


class Percentiles(Shape):
    """Of some milliseconds; null where nothing was measured."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class AnalyticsOverview(Shape):
    """Sums of the last minutes; latencies are of at most the last 1,000 requests of them."""

    minutes: int
    total_requests: int
    aborted_requests: int
    requests_per_minute: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int
    tokens_per_second: float
    """Completion tokens by the whole time."""
    latency_ms: Percentiles
    first_token_ms: Percentiles
    requests_by_model: dict[str, int]


class AnalyticsPoint(Shape):
    """One step of a time series."""

    timestamp: int
    """Unix seconds at which it begins."""
    requests: int
    aborted: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    mean_latency_ms: float | None


class AnalyticsSeries(Shape):
    interval_seconds: int
    points: list[AnalyticsPoint]


class AnalyticsRequest(Shape):
    """One request; neither its prompt nor its answer is kept."""

    request_id: str
    model: str
    caller: str
    timestamp: float
    """Unix seconds at which it ended."""
    latency_ms: float
    first_token_ms: float | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    outcome: Outcome


class AnalyticsRequests(Shape):
    total: int
    """AnalyticsRequests that are kept."""
    requests: list[AnalyticsRequest]


@router.get("", summary="Sums of what was asked lately.")
def overview(request: Request, minutes: Minutes = 60) -> AnalyticsOverview:
    return overview_of(state_of(request).history, minutes=minutes)


def overview_of(history: History, *, minutes: int) -> AnalyticsOverview:
    """Sum up the last minutes."""
    spans = history.minutes(minutes)
    seconds = max(1.0, min(minutes * 60.0, history.now() - history.started_at))
    lately = [one for one in history.latest() if one.ended_at >= spans[0].started_at]
    by_model: Counter[str] = sum((span.requests_by_model for span in spans), Counter())
    prompt = sum(span.prompt_tokens for span in spans)
    completion = sum(span.completion_tokens for span in spans)
    num_requests = sum(span.requests for span in spans)
    return AnalyticsOverview(
        minutes=minutes,
        total_requests=num_requests,
        aborted_requests=sum(span.aborted for span in spans),
        requests_per_minute=round(num_requests * 60 / seconds, 3),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=sum(span.cached_tokens for span in spans),
        total_tokens=prompt + completion,
        tokens_per_second=round(completion / seconds, 3),
        latency_ms=_percentiles([one.duration_ms for one in lately]),
        first_token_ms=_percentiles(
            [one.first_token_ms for one in lately if one.first_token_ms is not None]
        ),
        requests_by_model=dict(by_model),
    )


@router.get("/timeseries", summary="What was asked, step by step.")
def timeseries(
    request: Request,
    minutes: Minutes = 60,
    interval_minutes: Annotated[int, Query(ge=1, le=60, description="Minutes of a step.")] = 1,
) -> AnalyticsSeries:
    history: History = state_of(request).history
    spans = history.minutes(minutes)
    starts = range(0, len(spans), interval_minutes)
    return AnalyticsSeries(
        interval_seconds=interval_minutes * 60,
        points=[_point(spans[start : start + interval_minutes]) for start in starts],
    )


@router.get("/requests", summary="The last requests, the newest first.")
def requests(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_FACTS, description="Most that are listed.")] = 100,
) -> AnalyticsRequests:
    history: History = state_of(request).history
    entries = [
        AnalyticsRequest(
            request_id=one.request_id,
            model=one.model,
            caller=one.caller,
            timestamp=round(one.ended_at, 3),
            latency_ms=round(one.duration_ms, 1),
            first_token_ms=one.first_token_ms and round(one.first_token_ms, 1),
            prompt_tokens=one.prompt_tokens,
            completion_tokens=one.completion_tokens,
            cached_tokens=one.cached_tokens,
            outcome=one.outcome,
        )
        for one in history.latest(limit)
    ]
    return AnalyticsRequests(total=len(history.latest()), requests=entries)


def _point(spans: list[Minute]) -> AnalyticsPoint:
    num_requests = sum(span.requests for span in spans)
    spent_ms = sum(span.duration_ms for span in spans)
    return AnalyticsPoint(
        timestamp=spans[0].started_at,
        requests=num_requests,
        aborted=sum(span.aborted for span in spans),
        prompt_tokens=sum(span.prompt_tokens for span in spans),
        completion_tokens=sum(span.completion_tokens for span in spans),
        cached_tokens=sum(span.cached_tokens for span in spans),
        mean_latency_ms=round(spent_ms / num_requests, 1) if num_requests else None,
    )


def _percentiles(values: list[float]) -> Percentiles:
    if not values:
        return Percentiles(mean=None, p50=None, p95=None, p99=None)
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    mean = round(sum(values) / len(values), 1)
    return Percentiles(mean=mean, p50=at(0.5), p95=at(0.95), p99=at(0.99))
