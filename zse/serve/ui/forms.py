"""What forms send: few fields, short, each a text."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from zse.errors import UsageError
from zse.serve.http.errors import BadRequestError

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_FORM_BYTES = 16 << 10
_MAX_FIELDS = 32


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form without the blanks around them; the last of a name counts.

    Raises:
        BadRequestError: It is longer than any form of ours, or is none.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise BadRequestError(f"The form is longer than {MAX_FORM_BYTES} bytes.")
    try:
        fields = parse_qs(body.decode(), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise BadRequestError("The body is no form.") from None
    return {name: values[-1].strip() for name, values in fields.items()}


def whole_number(form: dict[str, str], name: str) -> int:
    """Return what a field says; 0 where it says nothing.

    Raises:
        UsageError: It is no number.
    """
    text = form.get(name, "") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise UsageError(f"{name.replace('_', ' ')} is {text[:20]!r}, expected a whole number")
    return int(text)
