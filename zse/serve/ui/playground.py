"""The playground's page: what it does stands in its scripts, what it keeps in ``conversations``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.http.requests import state_of
from zse.serve.toolbox import Toolbox
from zse.serve.ui.pages import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_chat(request: Request) -> Response:
    """Answer ``GET /chat``."""
    state = state_of(request)
    if state.fleet is not None:  # whose models come when they are named
        names = [model.name for model in state.fleet.listed()]
    else:
        models = [entry.model for entry in state.models if not entry.is_hidden]
        names = [model.name for model in models if model.task == "text"]
    tools = state.one_of(Toolbox).registry.names
    return render(request, "chat.html", page="chat", models=names, tools=tools)
