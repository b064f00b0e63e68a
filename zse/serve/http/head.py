"""The head of a request, read strictly: what two parsers could read differently is refused.

h11 checks the grammar. Beyond it, everything that has served to smuggle one request inside another
past a proxy ends the connection: two ways to say how long a body is, lines that end in a bare line
feed, lines that are continued, control characters, lengths that are lists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import h11

from zse.errors import UsageError
from zse.records import record
from zse.serve.http.hosts import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
END = b"\r\n\r\n"

_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LENGTHS = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*?)[ \t]*(?=\r)", re.IGNORECASE)
_MAX_LENGTH_DIGITS = 15
_VERSIONS = frozenset({b"1.0", b"1.1"})


class MalformedRequestError(UsageError):
    """What came is no request that all parsers read alike."""

    error_code = "malformed_request"


class HeadTooLargeError(UsageError):
    """The head of the request is longer than the server reads."""

    http_status = 431
    error_code = "request_header_fields_too_large"


@record
class Head:
    """The first lines of a request."""

    method: str
    target: bytes
    """Path and query, in origin form."""
    http_version: str
    """1.0 or 1.1."""
    headers: list[tuple[bytes, bytes]]
    """Names in lower case, in the order they came."""
    fields: Mapping[bytes, bytes]
    """The same by name; of equal names the last."""
    length: int | None
    """Of the body in bytes; None when it comes in chunks."""

    @property
    def path(self) -> str:
        """What is asked for, decoded, without its query."""
        return unquote(self.target.partition(b"?")[0].decode("ascii"))

    @property
    def keeps_alive(self) -> bool:
        """Whether the client may send another request on the same connection."""
        return self.http_version == "1.1" and "close" not in self._tokens(b"connection")

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for leave to send the body."""
        return self.http_version == "1.1" and "100-continue" in self._tokens(b"expect")

    @property
    def opens_websocket(self) -> bool:
        """Whether the client asks to speak WebSocket from here on."""
        asks = "upgrade" in self._tokens(b"connection")
        return asks and "websocket" in self._tokens(b"upgrade")

    def _tokens(self, name: bytes) -> list[str]:
        value = self.fields.get(name, b"").decode("latin-1").lower()
        return [token.strip() for token in value.split(",")]


def read_head(data: bytes) -> Head:
    """Parse the head of a request.

    Args:
        data: Everything up to and with the empty line.

    Raises:
        HeadTooLargeError: It has too many headers.
        MalformedRequestError: It breaks HTTP/1.1, or may be read in more than one way.
    """
    _refuse_ambiguous_lines(data)
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    parser.receive_data(data)
    try:
        request = parser.next_event()
    except h11.RemoteProtocolError as error:
        # Some of its sentences quote the line in full, and with that perhaps a key.
        raise MalformedRequestError(f"{str(error).partition(':')[0]}.") from None
    if not isinstance(request, h11.Request):
        raise MalformedRequestError("the head of the request is not complete")
    if request.http_version not in _VERSIONS:
        raise MalformedRequestError("only HTTP/1.1 and HTTP/1.0 are spoken here")
    headers = list(request.headers)
    fields = dict(headers)
    host = fields.get(b"host")
    if host and name_of(host.decode("latin-1")) is None:
        raise MalformedRequestError("the Host header names no host")
    return Head(
        method=request.method.decode("ascii"),
        target=_origin_form(request, host or b""),
        http_version=request.http_version.decode("ascii"),
        headers=headers,
        fields=fields,
        length=_length_of_body(data, fields, request.http_version),
    )


def _refuse_ambiguous_lines(data: bytes) -> None:
    num_lines = data.count(b"\r\n")
    if num_lines - 2 > MAX_HEADERS:
        raise HeadTooLargeError(f"The request has more than {MAX_HEADERS} headers.")
    if data.count(b"\n") != num_lines or data.count(b"\r") != num_lines:
        raise MalformedRequestError("a line of the head does not end in CR LF")
    if b"\r\n " in data or b"\r\n\t" in data:
        raise MalformedRequestError("a header goes on in a second line, which is obsolete")
    if _CONTROL.search(data):
        raise MalformedRequestError("the head has a control character")


def _length_of_body(data: bytes, fields: Mapping[bytes, bytes], version: bytes) -> int | None:
    lengths: list[bytes] = _LENGTHS.findall(data)
    if b"transfer-encoding" in fields:
        if lengths:
            raise MalformedRequestError("the body has a Content-Length and a Transfer-Encoding")
        if version == b"1.0":
            raise MalformedRequestError("HTTP/1.0 knows no Transfer-Encoding")
        return None  # h11 takes nothing but ``chunked``, once
    if not lengths:
        return 0
    (length, *others) = lengths
    if others or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise MalformedRequestError("Content-Length is not one number")
    return int(length)


def _origin_form(request: h11.Request, host: bytes) -> bytes:
    """Return path and query of the target; one in absolute form must name the same host."""
    target = bytes(request.target)
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        authority, slash, path = rest.partition(b"/")
        if authority.lower() != host.lower():
            raise MalformedRequestError("the target and the Host header name two hosts")
        target = slash + path or b"/"
    if not target.startswith(b"/") and (request.method, target) != (b"OPTIONS", b"*"):
        raise MalformedRequestError("the target is no path")
    return target
