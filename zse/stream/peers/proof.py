"""Who asks for weights and who answers prove to each other that they know one secret.

A request carries a time, a number that is used once, and an HMAC-SHA256 over these, the path and
the range; the answer carries one over the request's number and what it says of itself. So neither
side trusts an address, nothing that was overheard can be asked again, and no certificate has to be
made and renewed: one file, which a platform hands to all replicas. The bytes are not encrypted, and
not proven here: the file's digests are known from its origin, and groups are held against them.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TIME_HEADER = "x-zse-time"
NONCE_HEADER = "x-zse-nonce"
PROOF_HEADER = "x-zse-proof"
"""Of a request and of its answer."""
WINDOW_SECONDS = 60
"""How far clocks may be apart."""
_LEAST_SECRET_BYTES = 16
_MOST_NONCES = 65536
_NONCE = re.compile(r"[0-9a-f]{32}")
_TIME = re.compile(r"[0-9]{1,12}")


class PeerProofError(RefusedError):
    """A request or an answer does not prove that it comes from a replica."""


def read_secret(text: str, path: str) -> bytes:
    """Return the secret that is given, or that a file holds.

    Raises:
        UsageError: There is none, it cannot be read, or it is too short to keep.
    """
    secret = text.encode()
    if path:
        try:
            with Path(path).expanduser().open("rb") as file:
                secret = file.read(4096)
        except OSError as error:
            raise UsageError(
                f"the peers' secret, {path}, cannot be read: {error.strerror}"
            ) from None
    secret = secret.strip()
    if len(secret) < _LEAST_SECRET_BYTES:
        raise UsageError(
            f"the peers' secret has {len(secret)} bytes; expected {_LEAST_SECRET_BYTES} or more",
            hint="Give all replicas one: openssl rand -hex 32 > SECRET, then --peer-secret-file "
            "SECRET or ZSE_PEER_SECRET.",
        )
    return secret


def signed_request(secret: bytes, path: str, first: int, end: int) -> dict[str, str]:
    """Return the headers of a request for bytes ``first`` to ``end - 1`` at a path."""
    headers = {
        "Range": f"bytes={first}-{end - 1}",
        TIME_HEADER: str(int(time.time())),
        NONCE_HEADER: secrets.token_hex(16),
    }
    headers[PROOF_HEADER] = _request_proof(secret, path, headers)
    return headers


def answer_proof(secret: bytes, nonce: str, status: int, content_range: str) -> str:
    """Return what an answer shows of itself."""
    return mac(secret, "answer", nonce, str(status), content_range)


def check_answer(secret: bytes, nonce: str, status: int, content_range: str, proof: str) -> None:
    """Refuse an answer that does not come from who knows the secret.

    Raises:
        PeerProofError: It does not.
    """
    expected = answer_proof(secret, nonce, status, content_range)
    if not is_equal(expected, proof):
        raise PeerProofError("the answer is not proven: its sender does not know the secret")


class RequestCheck:
    """Tells requests of replicas from others, each of them once.

    Args:
        secret: What replicas know.
        clock: Unix seconds.
    """

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def check(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the number that a request brings; its answer is proven with it.

        Args:
            path: What is asked for.
            headers: Lower-case name -> value.

        Raises:
            PeerProofError: The request proves nothing, is too old, or came before.
        """
        moment, nonce = headers.get(TIME_HEADER, ""), headers.get(NONCE_HEADER, "")
        if not (_TIME.fullmatch(moment) and _NONCE.fullmatch(nonce)):
            raise PeerProofError("the request proves nothing")
        given = {"Range": headers.get("range", ""), TIME_HEADER: moment, NONCE_HEADER: nonce}
        expected = _request_proof(self._secret, path, given)
        if not is_equal(expected, headers.get(PROOF_HEADER, "")):
            raise PeerProofError("the request is not proven: its sender does not know the secret")
        now = self._clock()
        if abs(now - int(moment)) > WINDOW_SECONDS:
            raise PeerProofError(
                f"the request's time is {abs(now - int(moment)):.0f} s off",
                hint="Set the clocks of all replicas by NTP.",
            )
        with self._lock:
            self._forget(now)
            if nonce in self._seen or len(self._seen) >= _MOST_NONCES:
                raise PeerProofError("the request came before")
            self._seen[nonce] = now + 2 * WINDOW_SECONDS
        return nonce

    def _forget(self, now: float) -> None:
        for nonce, end in list(self._seen.items())[:64]:  # in the order of their ends
            if end > now:
                return
            del self._seen[nonce]


def _request_proof(secret: bytes, path: str, headers: Mapping[str, str]) -> str:
    return mac(
        secret, "request", path, headers["Range"], headers[TIME_HEADER], headers[NONCE_HEADER]
    )


def is_equal(expected: str, given: str) -> bool:
    """Compare in constant time; what is given may be any text."""
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def mac(secret: bytes, *parts: str) -> str:
    """Return HMAC-SHA256 over words, in hexadecimal."""
    text = "\n".join(("zse-peers-1", *parts))
    return hmac.digest(secret, text.encode("latin-1", "replace"), "sha256").hex()
