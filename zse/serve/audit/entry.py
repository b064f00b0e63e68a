"""One line of the audit log."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One request that has ended."""

    request_id: str
    """As the client got it back, in ``x-request-id``."""
    timestamp: str
    """When it came: ISO 8601, UTC, milliseconds."""
    method: str
    path: str
    status_code: int
    """0 where the client left before it was answered."""
    latency_ms: float
    """Until the answer, and the work behind it, had ended."""
    api_key_name: str | None
    """None where no key was asked for, or the one that was shown is unknown."""
    client_ip: str | None
    user_agent: str | None
    model_id: str | None
    """The model that worked for it."""
    total_tokens: int
    """Read and written."""
    tools: str | msgspec.UnsetType = msgspec.UNSET
    """Names of the tools that the server ran for it, in their order, with commas between them."""
    body: str | msgspec.UnsetType = msgspec.UNSET
    """The beginning of what was sent; only where the operator asked for that."""


FIELDS = AuditEntry.__struct_fields__
decode_entry = msgspec.json.Decoder(AuditEntry).decode
_encode = msgspec.json.Encoder().encode


def moment_of(when: datetime) -> str:
    """Return a time as entries have it."""
    utc = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode_line(entry: AuditEntry) -> bytes:
    """Return the line of an entry, with its end: what JSON writes has no other line ends."""
    return _encode(entry) + b"\n"
