"""Errors on the wire: every refusal becomes the error body of its route's protocol here.

OpenAI's is ``{"error": {"message", "type", "param", "code"}}`` with all four keys. Text of internal
failures never reaches a client, for it may hold paths and addresses; the log has it.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from zse.errors import DeadlineError, NotFoundError, UsageError, ZSEError
from zse.serve.access.rules import OLLAMA_PATHS
from zse.serve.http.dialects import OPENAI, ErrorDetail, dialect_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

LOG = logging.getLogger("zse.serve")

_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+~-]+){2,}/?")
API_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/score",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/api/models/load",
        "/api/models/search",
        "/health/ready",
        "/health/live",
        *OLLAMA_PATHS,
    }
)
"""Paths of this server that messages may name: everything else that looks like one is a file's."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")
_INTERNAL = "The server had an error while processing the request. Its log has the details."
_SERVED = "Generation is at /v1/chat/completions and /v1/completions; /docs lists every path."
_OTHER_ORIGINS = "Pages of other origins get no answers unless --cors-origin allows theirs."
_MAX_MESSAGE = 2000
_TOLD = frozenset({503, 504})
"""Server errors that clients are told of; all others are failures of ours."""
_HTTP_CODES = {404: "unknown_url", 405: "method_not_supported"}
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


class UnknownIdError(NotFoundError):
    """The caller has nothing by this id: it never had, it has no longer, or it is another's."""

    http_status = 404
    error_code = "not_found"

    def __init__(self, kind: str, given: str) -> None:
        super().__init__(f"No {kind} with id '{given[:100]}' found.")


class GatewayError(ZSEError):
    """A server behind this one did not answer as it should; clients are told so."""

    http_status = 502


class EventsGoneError(UsageError):
    """A stream is resumed at events that are not kept any more."""

    http_status = 410
    error_code = "events_gone"


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


def describe(error: BaseException) -> tuple[int, ErrorDetail]:
    is_told = isinstance(error, GatewayError)
    if isinstance(error, ZSEError) and (
        is_told or error.http_status < 500 or error.http_status in _TOLD
    ):
        return error.http_status, ErrorDetail(
            message=sanitize(error.message),
            type=error.error_type,
            param=error.param,
            code=error.error_code,
        )
    if isinstance(error, HTTPException):
        return error.status_code, ErrorDetail(
            message=str(error.detail),
            type="invalid_request_error",
            param=None,
            code=_HTTP_CODES.get(error.status_code),
        )
    return 500, ErrorDetail(message=_INTERNAL, type="server_error", param=None, code=None)


def sanitize(message: str) -> str:
    """Remove file paths and memory addresses from a message, and bound its length."""
    clean = _ADDRESS.sub("0x…", _PATH.sub(_hide_path, message))
    return clean if len(clean) <= _MAX_MESSAGE else clean[:_MAX_MESSAGE] + "…"


def _hide_path(match: re.Match[str]) -> str:
    path = match.group().rstrip(".")  # the full stop of a sentence
    return match.group() if path in API_PATHS else "(path)"


def error_frame(error: BaseException, scope: Scope) -> bytes:
    """Return the event that ends the stream of a request in an error."""
    dialect = dialect_of(scope["path"])
    body = dialect.make_error(*describe(error), _request_id(scope))
    return dialect.error_event + body + dialect.event_end


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer that says what went wrong, in the words of the route's protocol."""
    status, detail = describe(error)
    extra = dict(headers or {})
    retry_after = getattr(error, "retry_after_seconds", None)
    if retry_after is None and status == 503:
        retry_after = 1
    if retry_after is not None:
        extra.setdefault("retry-after", str(math.ceil(retry_after)))
        extra.setdefault("retry-after-ms", str(math.ceil(retry_after * 1000)))
    if isinstance(error, DeadlineError):
        extra["x-should-retry"] = "false"  # clients would wait for as long again
    return _ErrorResponse(status, detail, extra)


class _ErrorResponse(Response):
    """An error whose body is made when the route is known."""

    def __init__(self, status: int, detail: ErrorDetail, headers: Mapping[str, str]) -> None:
        body = OPENAI.make_error(status, detail, "")
        super().__init__(body, status, headers, media_type="application/json")
        self._detail = detail

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = dialect_of(scope["path"])
        request_id = _request_id(scope)
        self.body = dialect.make_error(self.status_code, self._detail, request_id)
        self.headers["content-length"] = str(len(self.body))
        if dialect.request_id_header is not None:
            self.headers[dialect.request_id_header] = request_id
        await super().__call__(scope, receive, send)


def _request_id(scope: Scope) -> str:
    request_id: str = scope.get("state", {}).get("request_id", "")
    return request_id


async def handle_zse_error(request: Request, error: Exception) -> Response:
    """Answer a deliberate error; log it when it is the server's fault."""
    if isinstance(error, ZSEError) and error.http_status >= 500 and error.http_status not in _TOLD:
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
