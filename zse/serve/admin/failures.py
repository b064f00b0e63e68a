"""What FastAPI's own checks find wrong, as OpenAI's error body: bounded, and nothing is echoed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fastapi.exceptions import RequestValidationError

from zse.serve.http.errors import BadRequestError, error_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_MAX_NAME = 64


async def handle_invalid_request(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Answer with the first of what is wrong; the value itself may be large, or secret."""
    first = cast("RequestValidationError", error).errors()[0]
    inner = first["loc"][1:5]  # behind where it stands: body, query, path
    name = ".".join(str(part)[:_MAX_NAME] for part in inner)[:_MAX_NAME]
    if first["type"] == "json_invalid":
        return error_response(BadRequestError("The body could not be parsed as JSON."))
    message = f"Invalid '{name}': {first['msg']}." if name else f"{first['msg']}."
    code = "missing_required_parameter" if first["type"] == "missing" else None
    return error_response(BadRequestError(message, param=name or None, code=code))
