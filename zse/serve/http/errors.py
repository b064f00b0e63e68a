"""Errors on the wire: every refusal becomes OpenAI's error body here and nowhere else.

The body is ``{"error": {"message", "type", "param", "code"}}`` with all four keys. Text of internal
failures never reaches a client, for it may hold paths and addresses; the log has it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from zse.errors import UsageError, ZSEError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

LOG = logging.getLogger("zse.serve")

_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+~-]+){2,}/?")
API_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health/ready", "/health/live"}
)
"""Paths of this server that messages may name: everything else that looks like one is a file's."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_INTERNAL = "The server had an error while processing the request. Its log has the details."
_SERVED = "Generation is at /v1/chat/completions and /v1/completions; /docs lists every path."
_OTHER_ORIGINS = (
    "Browsers get answers of their own origin only: put a proxy of that origin in front."
)
_MAX_MESSAGE = 2000
_CLIENT_CLOSED = 499
"""As other servers write it into their logs; nobody is left to read it."""


class BadRequestError(UsageError):
    """The body of a request breaks the protocol; ``param`` names the field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        self.error_code = code


class MissingParameterError(BadRequestError):
    """A field that a request must have is not there."""

    def __init__(self, param: str) -> None:
        code = "missing_required_parameter"
        super().__init__(f"Missing required parameter: '{param}'.", param=param, code=code)


class UnsupportedParameterError(BadRequestError):
    """A known parameter asks for something this server does not do; ``advice`` leads on."""

    def __init__(self, param: str, advice: str) -> None:
        message = f"Unsupported parameter: '{param}' is not supported by this server."
        super().__init__(f"{message} {advice}".strip(), param=param, code="unsupported_parameter")


class BodyTooLargeError(UsageError):
    """The body is longer than the server reads."""

    http_status = 413
    error_code = "request_too_large"


class MediaTypeError(UsageError):
    """The body is not declared as JSON."""

    http_status = 415
    error_code = "unsupported_media_type"


class MisdirectedError(UsageError):
    """The Host header names a host that this server is not."""

    http_status = 421
    error_code = "misdirected_request"


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What is inside ``error``; all four keys are always written."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


def describe(error: BaseException) -> tuple[int, ErrorDetail]:
    if isinstance(error, ZSEError) and (error.http_status < 500 or error.http_status == 503):
        return error.http_status, ErrorDetail(
            message=sanitize(error.message),
            type=error.error_type,
            param=error.param,
            code=error.error_code,
        )
    if isinstance(error, HTTPException):
        return error.status_code, ErrorDetail(
            message=str(error.detail), type="invalid_request_error", param=None, code=None
        )
    return 500, ErrorDetail(message=_INTERNAL, type="server_error", param=None, code=None)


def sanitize(message: str) -> str:
    """Remove file paths and memory addresses from a message, and bound its length."""
    clean = _ADDRESS.sub("0x…", _PATH.sub(_hide_path, message))
    return clean if len(clean) <= _MAX_MESSAGE else clean[:_MAX_MESSAGE] + "…"


def _hide_path(match: re.Match[str]) -> str:
    path = match.group().rstrip(".")  # the full stop of a sentence
    return match.group() if path in API_PATHS else "(path)"


def encode_error(error: BaseException) -> bytes:
    """Return the JSON body for an exception, also used inside a stream."""
    return msgspec.json.encode(ErrorBody(error=describe(error)[1]))


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    status, detail = describe(error)
    extra = dict(headers or {})
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is None and status == 503:
        retry_after = 1
    if retry_after is not None:
        extra.setdefault("retry-after", str(retry_after))
    body = msgspec.json.encode(ErrorBody(error=detail))
    return Response(body, status_code=status, media_type="application/json", headers=extra)


async def handle_zse_error(request: Request, error: Exception) -> Response:
    """Answer a deliberate error; log it when it is the server's fault."""
    if isinstance(error, ZSEError) and error.http_status >= 500 and error.http_status != 503:
        LOG.error("request failed: %s", error, extra={"path": request.scope["path"]})
    return error_response(error)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Answer unknown paths (404) and wrong methods (405) in the same shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.scope['path'][:200]}"
    words = {404: f"Invalid URL ({what}). {_SERVED}", 405: f"Method not allowed ({what})"}
    if request.method == "OPTIONS":
        words[405] += f". {_OTHER_ORIGINS}"
    headers = error.headers if isinstance(error, HTTPException) else None
    detail = words.get(status, str(getattr(error, "detail", _INTERNAL)))
    return error_response(HTTPException(status, detail), headers)


async def handle_client_gone(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """End a request that nobody waits for: no failure of ours, and not logged as one."""
    return Response(status_code=_CLIENT_CLOSED)


async def handle_crash(request: Request, error: Exception) -> Response:
    """Answer an unforeseen failure without saying what it was."""
    LOG.error("unexpected failure", exc_info=error, extra={"path": request.scope["path"]})
    return error_response(error)
