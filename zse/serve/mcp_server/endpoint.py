"""POST /mcp: the Model Context Protocol over streamable HTTP, for programs that want this server.

Of the protocol (2025-11-25 and before) only what tools need: each message is answered in one piece,
and nothing is kept between two of them, so there is no session to steal, to lose or to balance.
Nothing of the official SDK is imported: images offer it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from zse import __version__
from zse.errors import NotFoundError
from zse.serve.access.policy import ScopeError
from zse.serve.admin.guard import refuse_foreign_page
from zse.serve.http.errors import BadRequestError
from zse.serve.http.requests import json_response, read_body, state_of
from zse.serve.mcp_server.inner import ask_inside
from zse.serve.mcp_server.offered import OFFERED
from zse.tools.registry import ToolError

if TYPE_CHECKING:
    from starlette.requests import Request

    from zse.serve.access.account import Account

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, the newest first."""
_INSTRUCTIONS = "Language models served by zse, and the documents that the key keeps there."
_PARSE, _INVALID, _NO_METHOD, _BAD_PARAMS = -32700, -32600, -32601, -32602


class _RPCError(Exception):
    """A message is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def answer_mcp(request: Request) -> Response:
    """Answer one message.

    Raises:
        NotFoundError: The server was not started with ``--mcp-endpoint``.
        ForeignPageError: A page of another origin asks.
        ZSEError: As ``read_body``.
    """
    _require_enabled(request)
    _refuse_foreign_page(request)
    try:
        message = await read_body(request)
    except BadRequestError as error:
        return _failed(None, _RPCError(_PARSE, error.message), status=400)
    identifier = message.get("id")
    try:
        _check(request, message, identifier)
        if "id" not in message or "method" not in message:  # a notification, or an answer to none
            return Response(status_code=202)
        result = await _result(request, message["method"], message.get("params") or {})
    except _RPCError as error:
        status = 400 if error.code == _INVALID else 200
        return _failed(identifier, error, status=status)
    return json_response({"jsonrpc": "2.0", "id": identifier, "result": result})


async def refuse_stream(request: Request) -> Response:
    """Answer ``GET`` and ``DELETE``: there is no stream of its own, and no session to end.

    Raises:
        NotFoundError: As ``answer_mcp``.
    """
    _require_enabled(request)
    return Response(status_code=405, headers={"allow": "POST"})


def _require_enabled(request: Request) -> None:
    if not state_of(request).options.server_tools.mcp_endpoint:
        raise NotFoundError(
            "This server offers no MCP.", hint="Start it with --mcp-endpoint, or use `zse mcp`."
        )


def _refuse_foreign_page(request: Request) -> None:
    """Refuse pages of other origins, but those that the operator lets read answers."""
    origins = {origin.lower().rstrip("/") for origin in state_of(request).options.http.cors_origins}
    if "*" not in origins and request.headers.get("origin", "").lower() not in origins:
        refuse_foreign_page(request)


def _check(request: Request, message: dict[str, Any], identifier: object) -> None:
    version = request.headers.get("mcp-protocol-version", VERSIONS[0])
    if version not in VERSIONS:
        spoken = ", ".join(VERSIONS)
        raise _RPCError(_INVALID, f"MCP {version[:40]!r} is not spoken here, but {spoken}.")
    if message.get("jsonrpc") != "2.0":
        raise _RPCError(_INVALID, "A message is an object with 'jsonrpc': '2.0'.")
    is_named = isinstance(identifier, str | int) and not isinstance(identifier, bool)
    if "id" in message and not is_named:
        raise _RPCError(_INVALID, "'id' is a text or a whole number.")
    if not isinstance(message.get("method", ""), str):
        raise _RPCError(_INVALID, "'method' is a text.")
    if not isinstance(message.get("params") or {}, dict):
        raise _RPCError(_INVALID, "'params' is an object.")


async def _result(request: Request, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "zse", "version": __version__},
            "instructions": _INSTRUCTIONS,
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [_described(name) for name in OFFERED]}
    if method == "tools/call":
        return await _called(request, params)
    raise _RPCError(_NO_METHOD, f"There is no method {method[:80]!r} here.")


def _described(name: str) -> dict[str, Any]:
    tool = OFFERED[name]
    hints = {"readOnlyHint": True, "openWorldHint": False}
    return {
        "name": name,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "annotations": hints,
    }


async def _called(request: Request, params: dict[str, Any]) -> dict[str, Any]:
    """Run a tool; what goes wrong in it is told as its result, so that models read it."""
    name, arguments = params.get("name"), params.get("arguments") or {}
    tool = OFFERED.get(name) if isinstance(name, str) else None
    if tool is None:
        raise _RPCError(_BAD_PARAMS, f"There is no tool {str(name)[:80]!r} here.")
    account: Account = request.scope["state"]["account"]
    account.tools.append(tool.name)
    try:
        inner: Any = tool.call(arguments)
        status, answer = await ask_inside(request, inner)
    except (ToolError, ScopeError) as error:
        return _content(error.message, is_error=True)
    if status != 200:
        return _content(_message(answer) or f"The server answered {status}.", is_error=True)
    told = inner.told(answer)
    return _content(told if isinstance(told, str) else msgspec.json.encode(told).decode())


def _content(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def _failed(identifier: object, error: _RPCError, *, status: int) -> Response:
    told = {"code": error.code, "message": str(error)}
    text = msgspec.json.encode({"jsonrpc": "2.0", "id": identifier, "error": told})
    return Response(text, status, media_type="application/json")
