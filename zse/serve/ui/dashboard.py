"""The dashboard: what is so now comes over ``/ws/stats``; the last start is a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record
from zse.serve.admin.stats import read_models
from zse.serve.http.requests import state_of
from zse.serve.ui.pages import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from zse.serve.ledger import Ledger

WIDTH = 1000
"""Units of the picture of a start, from the beginning of the process to the last moment."""


@record
class Bar:
    """A phase of the start in the picture."""

    name: str
    start: float
    """In units of the picture."""
    width: float
    duration_ms: float
    end_ms: float
    is_moment: bool
    """It has an end and no beginning of its own, as ``ready``."""


def waterfall(ledger: Ledger) -> list[Bar]:
    """Return the phases in the order in which they began."""
    phases = ledger.phases()
    scale = WIDTH / max([phase.end_ms for phase in phases] + [1.0])
    moments = {"answering", "ready", "first-token"}
    bars = []
    for phase in phases:
        start_ms = phase.end_ms if phase.name in moments else phase.start_ms
        bars.append(
            Bar(
                name=phase.name,
                start=round(start_ms * scale, 1),
                width=round(max((phase.end_ms - start_ms) * scale, 3.0), 1),
                duration_ms=round(phase.duration_ms, 1),
                end_ms=round(phase.end_ms, 1),
                is_moment=phase.name in moments,
            )
        )
    return sorted(bars, key=lambda bar: (bar.start, bar.end_ms))


async def show_dashboard(request: Request) -> Response:
    """Answer ``GET /dashboard``."""
    state = state_of(request)
    return render(
        request,
        "dashboard.html",
        page="dashboard",
        status_text=state.stage,
        bars=[vars(bar) for bar in waterfall(state.ledger)],
        models=[model.model_dump() for model in read_models(state)],
    )
