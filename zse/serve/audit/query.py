"""What the audit log says: entries that somebody looks for, and sums of them."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgspec

from zse.records import record
from zse.serve.audit.entry import decode_entry
from zse.serve.audit.files import AuditFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zse.serve.audit.entry import AuditEntry
    from zse.serve.audit.log import AuditLog

NUM_TOP = 10
_FIRST_REFUSAL = 400


@record
class Wanted:
    """Which entries; what is empty leaves nothing out."""

    since: str = ""
    """The earliest time, as entries have it: such texts sort as the times do."""
    until: str = ""
    """The first time that is too late."""
    key: str = ""
    path: str = ""
    """How it begins."""
    status: str = ""
    """``429``, or ``5xx`` for all of a kind."""
    leaves_out: tuple[str, ...] = ()
    """How paths begin that say little where they were answered; refusals are always there."""

    def has(self, entry: AuditEntry) -> bool:
        return (
            entry.timestamp >= self.since
            and (not self.until or entry.timestamp < self.until)
            and (not self.key or entry.api_key_name == self.key)
            and entry.path.startswith(self.path)
            and (not self.status or self._has_status(str(entry.status_code)))
            and not (
                self.leaves_out
                and entry.status_code < _FIRST_REFUSAL
                and entry.path.startswith(self.leaves_out)
            )
        )

    def _has_status(self, status: str) -> bool:
        if self.status.lower().endswith("xx"):
            return status.startswith(self.status[:-2])
        return status == self.status


def find(log: AuditLog | AuditFiles, wanted: Wanted) -> Iterator[AuditEntry]:
    """Yield the entries that are wanted, the oldest first; a damaged line is left out.

    Where no files are kept, those are found that the server remembers.
    """
    if not isinstance(log, AuditFiles):
        log.flush()
        if log.files is None:
            yield from filter(wanted.has, reversed(log.recent()))
            return
        log = log.files
    for line in log.lines():
        try:
            entry = decode_entry(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if wanted.has(entry):
            yield entry


def newest(log: AuditLog | AuditFiles, wanted: Wanted, count: int) -> list[AuditEntry]:
    """Return the last entries that are wanted, the newest first."""
    return list(reversed(deque(find(log, wanted), maxlen=count)))


def summarize_files(log: AuditLog | AuditFiles, wanted: Wanted) -> dict[str, Any]:
    """Return the sums of the entries that are wanted."""
    return summarize(find(log, wanted))


def summarize(entries: Iterable[AuditEntry]) -> dict[str, Any]:
    """Return sums of entries: how many, how fast, for whom, with what result."""
    statuses: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    models: Counter[str] = Counter()
    latencies: list[float] = []
    tokens = 0
    for entry in entries:
        statuses[str(entry.status_code)] += 1
        keys[entry.api_key_name or "-"] += 1
        paths[entry.path] += 1
        latencies.append(entry.latency_ms)
        tokens += entry.total_tokens
        if entry.model_id is not None:
            models[entry.model_id] += 1
    latencies.sort()
    return {
        "total_requests": len(latencies),
        "total_tokens": tokens,
        "errors": sum(count for status, count in statuses.items() if status >= "4"),
        "rate_limited": statuses["429"],
        "latency_ms": {
            "mean": round(sum(latencies) / max(1, len(latencies)), 1),
            "p50": _quantile(latencies, 0.5),
            "p95": _quantile(latencies, 0.95),
        },
        "by_status": dict(statuses.most_common()),
        "by_key": dict(keys.most_common(NUM_TOP)),
        "by_path": dict(paths.most_common(NUM_TOP)),
        "by_model": dict(models.most_common(NUM_TOP)),
    }


def _quantile(sorted_values: list[float], share: float) -> float:
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, math.floor(share * len(sorted_values)))]
