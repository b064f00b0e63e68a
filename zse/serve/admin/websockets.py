"""/ws/chat and /ws/stats.

Keys come in a header or a subprotocol, never in the address, which ends up in logs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Query, WebSocket
from starlette.websockets import WebSocketDisconnect

from zse.serve.admin.chat_socket import ChatSocket
from zse.serve.admin.guard import Guard
from zse.serve.admin.stats_socket import send_stats

router = APIRouter(prefix="/ws", tags=["websockets"])


@router.websocket("/chat", dependencies=[Depends(Guard("inference"))])
async def chat(socket: WebSocket) -> None:
    await socket.accept()
    with suppress(WebSocketDisconnect):  # while something was being sent
        await ChatSocket(socket, socket.app.state.zse).run()


@router.websocket("/stats", dependencies=[Depends(Guard("metrics"))])
async def stats(socket: WebSocket, interval: Annotated[float, Query(ge=0.5, le=60)] = 1.0) -> None:
    await socket.accept()
    with suppress(WebSocketDisconnect):
        await send_stats(socket, socket.app.state.zse, interval_seconds=interval)
