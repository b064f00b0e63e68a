"""Answers of the playground: the server makes them, seen or not, and keeps them as they grow.

A page that is loaded again in mid-answer reads on: its first event says what has been written so
far, and each one that follows what came since.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import ShuttingDownError, StoreError
from zse.serve.http.errors import describe
from zse.serve.http.streaming import log_failure, nobody, race
from zse.serve.turn import CallArguments, CallOpened, ReasoningPart, TextPart, ToolRan
from zse.serve.ui.conversations import Conversations

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from zse.serve.openai.tool_turns import ToolTurns
    from zse.serve.state import AppState
    from zse.serve.turn import Event, Turn
    from zse.serve.ui.conversations import Row

SAVE_SECONDS = 0.5
"""How much of an answer the end of this process may cost, at most."""
STALE_SECONDS = 10.0
"""An answer that nobody has written on for so long was interrupted."""


class Run:
    """One answer while it is made.

    Args:
        turn: Whose answer it is.
        message: The row that it fills.
        store: Keeps it.
    """

    def __init__(self, turn: Turn | ToolTurns, message: Row, store: Conversations) -> None:
        self._turn = turn
        self._message = message["id"]
        self._store = store
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: list[dict[str, str]] = []
        self._began = self._first = time.monotonic()
        self._saved = self._began
        self._status, self._error = "writing", ""
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    def start(self, terminate: asyncio.Event, on_end: Callable[[], None]) -> None:
        """Make the answer in the background; ``on_end`` is called when it has ended."""
        self._task = asyncio.create_task(self._make(terminate))
        # Also of a task that was cancelled before it began.
        self._task.add_done_callback(lambda _: on_end())

    async def stop(self) -> None:
        """End the answer where it is; what was written stays."""
        if self._task is not None and not self._task.done():
            if self._status == "writing":  # else it is being saved
                self._task.cancel()
            await asyncio.wait({self._task})
            if self._status == "writing":  # it had not begun
                self._status = "stopped"
                await self._keep()

    def row(self) -> Row:
        """Return what is known of the answer now."""
        return self._row_from(0, 0)

    def _row_from(self, num_said: int, num_thought: int) -> Row:
        """Return it without so many parts of what was said, and thought, first."""
        spent = time.monotonic() - self._first if self._said or self._thought else 0.0
        return {
            "content": "".join(self._said[num_said:]),
            "reasoning": "".join(self._thought[num_thought:]),
            "calls": self._calls,
            "status": self._status,
            "error": self._error,
            "tokens": self._turn.usage()["completion_tokens"],
            "seconds": round(spent, 3),
        }

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as events: all so far, then what comes, then how it ended."""
        num_said = num_thought = 0
        is_first = True
        while True:
            changed, row = self._changed, self._row_from(num_said, num_thought)
            num_said, num_thought = len(self._said), len(self._thought)
            yield frame({**row, "begins": is_first})
            is_first = False
            if row["status"] != "writing":
                return
            await asyncio.shield(changed)

    async def _make(self, terminate: asyncio.Event) -> None:
        try:
            await race(self._write(), nobody, terminate)
            self._status = "done"
        except asyncio.CancelledError:
            self._status = "stopped"
        except ShuttingDownError:
            self._status = "interrupted"
        except Exception as error:  # noqa: BLE001 - whoever reads the message is told
            log_failure(error)
            self._status, self._error = "failed", describe(error)[1].message
        await self._keep()

    async def _keep(self) -> None:
        """Save how the answer ended, and tell who reads it; where it cannot be saved, too."""
        try:
            await asyncio.to_thread(partial(self._store.save, self._message, **self.row()))
        except StoreError as error:
            log_failure(error)
        self._tell()

    async def _write(self) -> None:
        async with aclosing(self._turn.events()) as events:
            async for event in events:
                if not (self._said or self._thought):
                    self._first = time.monotonic()
                self._add(event)
                self._tell()
                if time.monotonic() - self._saved >= SAVE_SECONDS:
                    self._saved = time.monotonic()
                    save = partial(self._store.save, self._message, **self.row())
                    await asyncio.to_thread(save)

    def _add(self, event: Event) -> None:
        if isinstance(event, TextPart):
            self._said.append(event.text)
        elif isinstance(event, ReasoningPart):
            self._thought.append(event.text)
        elif isinstance(event, CallOpened):
            self._calls.append({"name": event.name, "arguments": ""})
        elif isinstance(event, CallArguments):
            self._calls[event.call]["arguments"] += event.text
        elif isinstance(event, ToolRan):
            self._calls.append(
                {"name": event.name, "arguments": event.arguments, "output": event.output}
            )

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)


class Answers:
    """Every answer that is being made, by its message."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._running: dict[str, Run] = {}

    def begin(self, turn: Turn | ToolTurns, message: Row, give_back: Callable[[], None]) -> None:
        """Make an answer in the background; ``give_back`` returns what was taken for it."""
        run = Run(turn, message, self._state.one_of(Conversations))
        self._running[message["id"]] = run

        def ended() -> None:
            give_back()
            del self._running[message["id"]]

        run.start(self._state.terminate, ended)

    def get(self, message: str) -> Run | None:
        """Return an answer that is being made; None where it is not, or no longer."""
        return self._running.get(message)

    def current(self, message: Row) -> Row:
        """Return a message as it is now: what is being written, or was and no longer is."""
        run = self.get(message["id"])
        if run is not None:
            return {**message, **run.row()}
        if message["status"] == "writing" and time.time() - message["saved"] > STALE_SECONDS:
            return {**message, "status": "interrupted"}
        return message


def frame(value: dict[str, Any]) -> bytes:
    """Return an event of a stream."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
