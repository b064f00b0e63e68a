"""What a check finds: one line, and the way on where something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.failures import deliberate
from zse.records import record

if TYPE_CHECKING:
    from zse.settings import Settings

Status: TypeAlias = Literal["ok", "note", "problem"]


@record
class Finding:
    """One thing that was looked at."""

    check: str
    """What was looked at, in a word or two: ``memory``."""
    status: Status
    """``problem``: it will not work. ``note``: it works, and may not be what is meant."""
    found: str
    fix: str = ""
    """What to do next; never empty for a problem."""


Findings: TypeAlias = Iterator[Finding]
Check: TypeAlias = "Callable[[Settings], Findings]"


def fine(check: str, found: str) -> Finding:
    return Finding(check=check, status="ok", found=found)


def note(check: str, found: str, fix: str = "") -> Finding:
    return Finding(check=check, status="note", found=found, fix=fix)


def problem(check: str, found: str, fix: str) -> Finding:
    return Finding(check=check, status="problem", found=found, fix=fix)


def guarded(check: str, settings: Settings, findings: Check) -> Findings:
    """Yield findings up to the first failure, and that as the last of them.

    A check that fails is a finding: the others are still made.
    """
    try:
        yield from findings(settings)
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is what was found
        error = deliberate(failure, settings.cache_dir)
        yield problem(check, error.message, error.hint)
