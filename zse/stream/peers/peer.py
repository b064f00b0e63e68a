"""One replica that shares its file, as a starting one asks it: ranges, no patience."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from zse.errors import UsageError, ZSEError
from zse.store.http.pool import HttpPool
from zse.stream.peers.proof import (
    NONCE_HEADER,
    PROOF_HEADER,
    PeerProofError,
    check_answer,
    signed_request,
)

if TYPE_CHECKING:
    from zse.settings import ProxySettings

PATH = "/zse/weights/"
"""Before the digest of a file's header, which names its content."""
TIMEOUT_SECONDS = 3.0
"""Without a byte; a replica that needs longer is not worth waiting for."""
LEAST_BYTES_A_SECOND = 4 << 20
"""What a replica must bring, after its first seconds, or others do."""
_GRACE_SECONDS = 3.0
_PIECE_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class PeerError(Exception):
    """A replica did not bring what was asked of it. Never leaves the source that asks several."""


class PeerBusyError(PeerError):
    """It has all the connections that it serves at once."""


class Peer:
    """A replica at an address.

    Args:
        url: ``http://HOST:PORT``.
        identity: SHA-256 of the header of the file that is wanted.
        secret: What all replicas know.
    """

    def __init__(self, url: str, identity: str, secret: bytes, proxies: ProxySettings) -> None:
        check_url(url)
        self.url = url.rstrip("/")
        self._path = PATH + identity
        self._secret = secret
        # What lies in one's own network is asked without a proxy.
        self._pool = HttpPool(type(proxies)(), timeout_seconds=TIMEOUT_SECONDS)
        self.num_reading = 0
        """Reads that are under way; its source counts them."""
        self.num_bytes = 0
        """Bytes that it was asked for so far."""

    def read_into(self, offset_bytes: int, view: memoryview, total_bytes: int) -> int:
        """Fill a view and return how much of it was filled: all, or less where it went wrong.

        Raises:
            PeerBusyError: It has no connection free.
            PeerError: Nothing came.
        """
        filled = 0
        try:
            filled = self._read(offset_bytes, view, total_bytes)
        except PeerError:
            raise
        except (OSError, ZSEError) as error:
            raise PeerError(f"{self.url}: {error}") from error
        return filled

    def interrupt(self) -> None:
        self._pool.interrupt()

    def close(self) -> None:
        self._pool.close()

    def _read(self, offset_bytes: int, view: memoryview, total_bytes: int) -> int:
        end = offset_bytes + len(view)
        headers = signed_request(self._secret, self._path, offset_bytes, end)
        expected = f"bytes {offset_bytes}-{end - 1}/{total_bytes}"
        filled, began = 0, time.monotonic()
        with self._pool.ask(self.url + self._path, headers, follow="nowhere") as answer:
            if answer.status == 503:
                raise PeerBusyError(f"{self.url} is busy")
            content_range = answer.header("Content-Range")
            proof = answer.header(PROOF_HEADER)
            check_answer(self._secret, headers[NONCE_HEADER], answer.status, content_range, proof)
            if answer.status != 206 or content_range != expected:
                raise PeerError(f"{self.url} answered {answer.status} {content_range!r:.80}")
            while filled < len(view):
                try:
                    with view[filled : filled + _PIECE_BYTES] as rest:
                        count = answer.readinto(rest)
                except OSError:
                    break
                filled += count
                spent = time.monotonic() - began - _GRACE_SECONDS
                if not count or (spent > 0 and filled < spent * LEAST_BYTES_A_SECOND):
                    break
        return filled


def check_url(url: str) -> None:
    """Refuse what is no address of a replica, with a UsageError."""
    if not _is_address(url):
        raise UsageError(
            f"{url[:200]!r} is no address of a replica that shares its weights",
            hint="Write http://HOST:PORT, with the --share-port of the other server.",
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname and parts.port)
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not parts.query and "@" not in parts.netloc
    return named and is_bare and parts.scheme == "http"


__all__ = ["PATH", "Peer", "PeerBusyError", "PeerError", "PeerProofError", "check_url"]
