"""``zse mcp``: a running server's models, status and documents, for MCP clients, over stdio."""

from __future__ import annotations

import asyncio
from typing import Annotated

from typer import Option

from zse.cli.app import App
from zse.cli.running import DEFAULT_URL
from zse.errors import needing

app = App()


@app.command("mcp")
def command(
    *,
    url: Annotated[
        str, Option(metavar="URL", help="The server of zse that answers.")
    ] = DEFAULT_URL,
    api_key: Annotated[
        str, Option(envvar="ZSE_API_KEY", show_default=False, help="Key of the server.")
    ] = "",
    model: Annotated[str, Option(help="Model that `ask` takes where none is named.")] = "default",
    timeout: Annotated[
        float, Option(metavar="SECONDS", min=1.0, help="How long an answer may take.")
    ] = 600.0,
) -> None:
    """Offer the models of a running server to an MCP client, which starts this command.

    Its tools are ask, list_models, server_status and search_documents. They may do what the API
    key may do.
    """
    with needing("mcp", "zse mcp"):
        from zse.cli.mcp_server import server_for
    asyncio.run(server_for(url, api_key=api_key, model=model, seconds=timeout).run_stdio_async())
