"""The head of a request, read strictly: what two parsers could read differently is refused.

The grammar is that of RFC 9112. Beyond it, everything that has served to smuggle one request inside
another past a proxy ends the connection: two ways to say how long a body is, lines that end in a
bare line feed, lines that are continued, control characters, lengths that are lists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from zse.errors import UsageError
from zse.records import record
from zse.serve.http.hosts import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
END = b"\r\n\r\n"

_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])" % _TOKEN)
_FIELD_NAME = re.compile(_TOKEN)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
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
        if name not in self.fields:
            return []
        # A list may come in several lines (RFC 9110, 5.3): "close" counts in each of them.
        lines = b",".join([value for each, value in self.headers if each == name])
        return [token.strip() for token in lines.decode("latin-1").lower().split(",")]


def read_head(data: bytes) -> Head:
    """Parse the head of a request.

    Args:
        data: Everything up to and with the empty line.

    Raises:
        HeadTooLargeError: It has too many headers.
        MalformedRequestError: It breaks HTTP/1.1, or may be read in more than one way.
    """
    _refuse_ambiguous_lines(data)
    if not data.endswith(END):
        raise MalformedRequestError("the head of the request is not complete")
    first, *lines = data.removesuffix(END).split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None:
        raise MalformedRequestError("the first line is not a method, a target and a version")
    method, target, version = request_line.groups()
    if version not in _VERSIONS:
        raise MalformedRequestError("only HTTP/1.1 and HTTP/1.0 are spoken here")
    headers = [_header_of(line) for line in lines]
    fields = dict(headers)
    host = _host_of(headers, version)
    return Head(
        method=method.decode("ascii"),
        target=_origin_form(method, target, host),
        http_version=version.decode("ascii"),
        headers=headers,
        fields=fields,
        length=_length_of_body(headers, version),
    )


def _header_of(line: bytes) -> tuple[bytes, bytes]:
    """Return name and value; no sentence quotes the line, which perhaps holds a key."""
    name, colon, value = line.partition(b":")
    if not colon or _FIELD_NAME.fullmatch(name) is None:
        raise MalformedRequestError("a line of the head is not a name, a colon and a value")
    return name.lower(), value.strip(b" \t")


def _host_of(headers: Sequence[tuple[bytes, bytes]], version: bytes) -> bytes:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (version == b"1.1" and not hosts):
        raise MalformedRequestError(f"a request has one Host header, this one {len(hosts)}")
    host = hosts[0] if hosts else b""
    if host and name_of(host.decode("latin-1")) is None:
        raise MalformedRequestError("the Host header names no host")
    return host


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


def _length_of_body(headers: Sequence[tuple[bytes, bytes]], version: bytes) -> int | None:
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths:
            raise MalformedRequestError("the body has a Content-Length and a Transfer-Encoding")
        if version == b"1.0":
            raise MalformedRequestError("HTTP/1.0 knows no Transfer-Encoding")
        if codings != [b"chunked"]:
            raise MalformedRequestError("the Transfer-Encoding is not chunked, once")
        return None
    if not lengths:
        return 0
    (length, *others) = lengths
    if others or not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
        raise MalformedRequestError("Content-Length is not one number")
    return int(length)


def _origin_form(method: bytes, target: bytes, host: bytes) -> bytes:
    """Return path and query of the target; one in absolute form must name the same host."""
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        authority, slash, path = rest.partition(b"/")
        if authority.lower() != host.lower():
            raise MalformedRequestError("the target and the Host header name two hosts")
        target = slash + path or b"/"
    if not target.startswith(b"/") and (method, target) != (b"OPTIONS", b"*"):
        raise MalformedRequestError("the target is no path")
    return target
