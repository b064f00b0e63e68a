"""Signatures of requests to AWS, and to what speaks its protocol (Signature Version 4)."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import field
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@record
class Credentials:
    """Who asks."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)
    expires_at: float = 0.0
    """Seconds since 1970; 0 means never."""


def sign(
    credentials: Credentials,
    *,
    host: str,
    path: str,
    region: str,
    method: str = "GET",
    query: str = "",
    headers: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> dict[str, str]:
    """Return the headers that authorize a request to S3 without a body.

    Args:
        host: As in the Host header.
        path: Percent-encoded, without a query.
        query: Percent-encoded, its parts sorted, each with a ``=``.
        headers: Others to sign; those that are not signed may be added to what is returned.
    """
    moment = time.gmtime(time.time() if seconds is None else seconds)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", moment)
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    sent |= {"x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
    if credentials.token:
        sent["x-amz-security-token"] = credentials.token
    signed = {**sent, "host": host}
    names = ";".join(sorted(signed))
    canonical = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = f"{method}\n{path}\n{query}\n{canonical}\n{names}\n{_EMPTY_SHA256}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={key.hex()}"
    )
    return sent
