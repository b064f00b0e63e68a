"""Which headers cross the router, each way, and the head that a replica is sent.

What belongs to one connection ends there (RFC 9110, 7.6.1). Who asks is said by the router alone:
what a client writes about itself is dropped. Keys pass through; replicas say who may ask.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from zse.route.addresses import Address

Headers = list[tuple[bytes, bytes]]
HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_OF_CLIENTS = frozenset(
    {
        *(b"host", b"content-length", b"expect", b"x-request-id", b"forwarded", b"x-real-ip"),
        *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-port"),
    }
)
_OF_REPLICAS = frozenset({b"date", b"x-request-id"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id that a client gives its request, or a new one."""
    given = dict(headers).get(b"x-request-id", b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def request_head(scope: Scope, address: Address, *, request_id: str, num_bytes: int) -> bytes:
    """Return the head of a request as a replica gets it."""
    target: bytes = scope["raw_path"]
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    client: tuple[str, int] | None = scope.get("client")
    own: list[tuple[bytes, Any]] = [
        (b"host", address.netloc.encode()),
        (b"x-request-id", request_id.encode()),
        (b"x-forwarded-proto", scope["scheme"].encode()),
    ]
    if client:
        own.append((b"x-forwarded-for", client[0].encode()))
    if num_bytes or scope["method"] not in _WITHOUT_BODY:
        own.append((b"content-length", b"%d" % num_bytes))
    kept = [
        pair
        for pair in scope["headers"]
        if pair[0] not in _OF_CLIENTS and not _belongs_to_hop(pair[0], scope["headers"])
    ]
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target)]
    lines += [b"%b: %b" % pair for pair in [*own, *kept]]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def answer_headers(headers: Headers, *, request_id: str) -> Headers:
    """Return the headers of an answer as its client gets them."""
    kept = [
        pair
        for pair in headers
        if pair[0] not in _OF_REPLICAS and not _belongs_to_hop(pair[0], headers)
    ]
    return [*kept, (b"x-request-id", request_id.encode())]


def _belongs_to_hop(name: bytes, headers: Headers) -> bool:
    if name in HOP_BY_HOP:
        return True
    named = [value for key, value in headers if key == b"connection"]
    return bool(named) and name in {
        word.strip().lower() for value in named for word in value.split(b",")
    }
