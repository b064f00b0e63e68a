"""What ``zse mcp`` offers: four tools, each one request to a running server of zse."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from zse import __version__

_CONNECT_SECONDS = 10.0
_Prompt = Annotated[str, Field(description="What is asked.", min_length=1, max_length=1_000_000)]
_System = Annotated[str, Field(description="How the model is to answer.", max_length=100_000)]
_Model = Annotated[str, Field(description="A name of list_models; empty for the default.")]
_Tokens = Annotated[int | None, Field(description="Longest answer.", ge=1, le=131_072)]
_Hits = Annotated[int, Field(description="Excerpts at most.", ge=1, le=50)]


def server_for(url: str, *, api_key: str, model: str, seconds: float) -> MCPServer:
    """Return the MCP server.

    Args:
        url: Of the zse server, with or without ``/v1``.
        api_key: Empty for a server without keys.
        model: Asked where a call names none.
        seconds: That an answer may take.
    """
    ours = _ZseServer(url, api_key, seconds)
    server = MCPServer("zse", version=__version__, instructions="Language models served by zse.")

    @server.tool()
    async def ask(
        prompt: _Prompt, system: _System = "", model_name: _Model = "", max_tokens: _Tokens = None
    ) -> str:
        """Ask a language model that zse serves, and return its answer."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        body: dict[str, Any] = {"model": model_name or model, "messages": messages}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        answer = await ours.send("POST", "/v1/chat/completions", body)
        return str(answer["choices"][0]["message"]["content"] or "")

    @server.tool()
    async def list_models() -> list[str]:
        """List the models that can be asked."""
        return [str(one["id"]) for one in (await ours.send("GET", "/v1/models"))["data"]]

    @server.tool()
    async def server_status() -> str:
        """Tell what the server is doing: models, queue, speed, memory. JSON."""
        return json.dumps(await ours.send("GET", "/api/stats"), ensure_ascii=False)

    @server.tool()
    async def search_documents(query: _Prompt, most: _Hits = 5) -> str:
        """Find excerpts of the documents kept on the server, by words and by meaning. JSON."""
        found = await ours.send("POST", "/api/rag/search", {"query": query, "top_k": most})
        return json.dumps(found["results"], ensure_ascii=False)

    return server


class _ZseServer:
    """Asks the server; what goes wrong is said in its own words."""

    def __init__(self, url: str, api_key: str, seconds: float) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = httpx.Timeout(seconds, connect=_CONNECT_SECONDS)

    async def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return what a request is answered with.

        Raises:
            ToolError: Nobody answers, or with an error.
        """
        try:
            async with httpx.AsyncClient(timeout=self._timeout, headers=self._headers) as client:
                response = await client.request(method, self._url + path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ToolError(f"no answer from {self._url}: {reason}. Is `zse serve` up?") from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != 200 or not isinstance(answer, dict):
            raise ToolError(f"{self._url} answered {response.status_code}: {_message(answer)}")
        return answer


def _message(answer: Any) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else "no JSON of zse"
