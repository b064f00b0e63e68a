"""What time it is, anywhere; and how far two times are apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec

from zse.tools.registry import Tool, ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_CHARACTERS = 64


class Moment(msgspec.Struct):
    timezone: str = "UTC"
    """A name of the IANA database, such as Europe/Berlin."""
    time: str = ""
    """ISO 8601, such as 2026-03-01T12:00:00+01:00; empty means now."""
    add_seconds: float = 0.0
    """What is added to it."""
    until: str = ""
    """ISO 8601; how many seconds lie between is told."""


def clock(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Tool:
    """Return the tool; ``now`` returns the time in UTC."""
    return Tool(
        "datetime",
        "Tells the current date and time in a time zone, converts a time to another zone, adds "
        "seconds to it, or tells the seconds until another time.",
        Moment,
        lambda asked: _told(asked, now),
    )


def _told(asked: Moment, now: Callable[[], datetime]) -> dict[str, object]:
    zone = _zone(asked.timezone)
    moment = _read(asked.time, zone) if asked.time else now()
    try:
        moment = (moment + timedelta(seconds=asked.add_seconds)).astimezone(zone)
        seconds = (_read(asked.until, zone) - moment).total_seconds() if asked.until else None
    except (OverflowError, ValueError):
        raise ToolError("that time is further away than a calendar reaches") from None
    told: dict[str, object] = {
        "iso": moment.isoformat(timespec="seconds"),
        "timezone": asked.timezone,
        "weekday": moment.strftime("%A"),
        "week": moment.isocalendar().week,
        "unix": round(moment.timestamp()),
    }
    return told if seconds is None else {**told, "seconds_until": round(seconds)}


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name[:_MOST_CHARACTERS])
    except (KeyError, ValueError, OSError):
        raise ToolError(
            f"{name[:_MOST_CHARACTERS]!r} is no time zone; one is Europe/Berlin"
        ) from None


def _read(text: str, zone: ZoneInfo) -> datetime:
    try:
        moment = datetime.fromisoformat(text[:_MOST_CHARACTERS])
    except ValueError:
        raise ToolError(f"{text[:_MOST_CHARACTERS]!r} is no time in ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=zone)
