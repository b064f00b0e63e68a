"""A form with files (RFC 7578), taken apart in memory: bodies are bounded before they come here."""

from __future__ import annotations

import re
from urllib.parse import unquote

from zse.records import record
from zse.serve.http.errors import BadRequestError

MAX_PARTS = 64
MAX_BOUNDARY = 70
"""RFC 2046, 5.1.1."""
_MAX_HEADER_BYTES = 8192
_PARAMETER = re.compile(
    r';\s*([^\s;="]+)\s*=\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^\s;"]*))', re.DOTALL
)
"""Behind a value of a header. A second try can only begin behind what the first has read: the time
is that of one reading, which ``email`` and its like do not hold to."""
_ESCAPED = re.compile(r'\\(["\\])')


@record
class Part:
    """One field of a form."""

    name: str
    data: bytes
    file_name: str | None = None
    """Without folders; None where it is no file."""


def parts_of(content_type: str, body: bytes) -> list[Part]:
    """Return the fields of a form.

    Raises:
        BadRequestError: The body is none.
    """
    boundary = _parameters(content_type).get("boundary", "")
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise BadRequestError("The form has no boundary: send it as multipart/form-data.")
    between = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(between, MAX_PARTS + 1)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise BadRequestError(f"The form has no end, or more than {MAX_PARTS} fields.")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    head, found, data = piece.partition(b"\r\n\r\n")
    if not found or len(head) > _MAX_HEADER_BYTES:
        raise BadRequestError("A field of the form has no end of its headers.")
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() != "content-disposition":
            continue
        said = _parameters(value)
        if "name" in said:
            file_name = _plain(said["filename*"]) if "filename*" in said else said.get("filename")
            return Part(name=said["name"], data=data, file_name=_without_folders(file_name))
    raise BadRequestError("A field of the form has no name.")


def _parameters(header: str) -> dict[str, str]:
    """Return what stands behind the value of a header, by names in lower case; the first counts."""
    found: dict[str, str] = {}
    for name, quoted, word in _PARAMETER.findall(header):
        found.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) if quoted else word)
    return found


def _plain(extended: str) -> str:
    """Return a value with a charset (RFC 8187): ``UTF-8''na%C3%AFve``; each other one as it is."""
    charset, _, rest = extended.partition("'")
    _language, quote, text = rest.partition("'")
    known = {"utf-8": "utf-8", "iso-8859-1": "latin-1"}.get(charset.lower())
    return unquote(text, known, "replace") if quote and known else extended


def _without_folders(name: str | None) -> str | None:
    return None if name is None else name.replace("\\", "/").rpartition("/")[2]
