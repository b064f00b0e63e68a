"""Ranges of an S3 object by its signed address: one signature for many ranges, no copies."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from zse.store.http_client import HttpClient
from zse.store.retry import BUSY_STATUSES, BusyServerError
from zse.store.s3_client import translated_errors

if TYPE_CHECKING:
    from zse.store.http_client import Answer
    from zse.store.location import Location

_VALID_SECONDS = 900
_RENEW_SECONDS = 300
"""Role credentials may end before the signature does, so it is made anew well before."""


class DirectReader:
    """Reads one object.

    Args:
        client: Signs addresses.
        location: The object.
    """

    def __init__(self, client: Any, location: Location) -> None:
        self._client, self._location = client, location
        self._http = HttpClient()
        self._lock = threading.Lock()
        self._url = ""
        self._signed_at = 0.0

    def open(self, first: int, last: int, content_range: str, etag: str) -> Answer | None:
        """Return the body of bytes ``first`` to ``last``; None when the server does not give it.

        Raises:
            OSError, http.client.HTTPException: The connection failed.
            CertificateError: The server's certificate is not trusted.
            BusyServerError: The server asks to try again.
        """
        headers = {"Range": f"bytes={first}-{last}", "If-Match": etag}
        answer = self._http.open(self._signed_url(), headers, follow_elsewhere=False)
        if answer.status == 206 and answer.header("Content-Range") == content_range:
            return answer
        status, asked = answer.status, answer.header("Retry-After")
        answer.close()
        if status in BUSY_STATUSES:
            raise BusyServerError(f"the server answered {status}", asked)
        return None

    def _signed_url(self) -> str:
        with self._lock:
            now = time.monotonic()
            if not self._url or now - self._signed_at > _RENEW_SECONDS:
                target = {"Bucket": self._location.bucket, "Key": self._location.key}
                with translated_errors(self._location):
                    self._url = self._client.generate_presigned_url(
                        "get_object", target, ExpiresIn=_VALID_SECONDS
                    )
                self._signed_at = now
            return self._url
