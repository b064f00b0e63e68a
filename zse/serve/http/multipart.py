"""A form with files (RFC 7578), taken apart in memory: bodies are bounded before they come here."""

from __future__ import annotations

from email.message import Message

from zse.records import record
from zse.serve.http.errors import BadRequestError

MAX_PARTS = 64
MAX_BOUNDARY = 70
"""RFC 2046, 5.1.1."""
_MAX_HEADER_BYTES = 8192


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
    boundary = _parameters(content_type).get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= MAX_BOUNDARY:
        raise BadRequestError("The form has no boundary: send it as multipart/form-data.")
    between = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(between, MAX_PARTS + 2)
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
        name, file_name = said.get_param("name"), said.get_filename()
        if isinstance(name, str):
            return Part(name=name, data=data, file_name=_without_folders(file_name))
    raise BadRequestError("A field of the form has no name.")


def _parameters(value: str) -> Message:
    message = Message()
    message["content-type"] = message["content-disposition"] = " ".join(value.split())
    return message


def _without_folders(name: str | None) -> str | None:
    return None if name is None else name.replace("\\", "/").rpartition("/")[2]
