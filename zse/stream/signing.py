"""Signs GET requests for S3 (AWS Signature Version 4) with the standard library alone.

Importing boto3 and making a client takes 0.7 s, longer than a model takes to load. It is asked
only for credentials that are not in the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import field
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_SECONDS_USED = 60.0


@record
class Credentials:
    """Who asks."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


def credentials_from(environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials that stand in the environment, if they do.

    A profile that is named wins over keys, as it does for the AWS tools.
    """
    access_key = environ.get("AWS_ACCESS_KEY_ID", "")
    secret_key = environ.get("AWS_SECRET_ACCESS_KEY", "")
    if environ.get("AWS_PROFILE") or not access_key or not secret_key:
        return None
    return Credentials(
        access_key=access_key, secret_key=secret_key, token=environ.get("AWS_SESSION_TOKEN", "")
    )


class Signatures:
    """Headers that are made anew once a minute; the servers accept them for a quarter of an hour.

    Args:
        sign: Makes them.
    """

    def __init__(self, sign: Callable[[], dict[str, str]]) -> None:
        self._sign = sign
        self._made: tuple[float, dict[str, str]] | None = None

    def headers(self) -> dict[str, str]:
        """Return them; two threads may both make them, which does no harm."""
        made, now = self._made, time.monotonic()
        if made is None or now - made[0] > _SECONDS_USED:
            made = self._made = (now, self._sign())
        return made[1]


def sign_get(
    credentials: Credentials, *, host: str, path: str, region: str, seconds: float | None = None
) -> dict[str, str]:
    """Return the headers that make a GET an authorized one; others may be added unsigned.

    Args:
        credentials: Who asks.
        host: As in the Host header.
        path: Percent-encoded, without a query.
        region: Of the bucket.
        seconds: The time, since 1970; now when not given.
    """
    moment = time.gmtime(time.time() if seconds is None else seconds)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", moment)
    headers = {"host": host, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"GET\n{path}\n\n{canonical}\n{names}\n{_EMPTY_SHA256}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    del headers["host"]  # the client sends it
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers
