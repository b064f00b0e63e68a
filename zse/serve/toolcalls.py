"""Tool calls out of answers: ``zse.text`` finds them, this file puts them into the API's terms."""

from __future__ import annotations

from typing import NamedTuple

_TAG, _CLOSER = "<tool_call>", "</tool_call>"
_OPENERS = (_TAG, "[TOOL_CALLS]", "<|python_tag|>")
_LONGEST = max(map(len, _OPENERS))


class CallPiece(NamedTuple):
    """A part of a streamed call. ``name`` is set on the first part of a call only."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    name: str | None
    arguments: str


class ToolReader:
    """Splits a streamed answer into text and calls.

    Text flows until something that may open a call; from there on it is held until the call is
    closed or the answer ends, when the same parser as for whole answers decides. A call that is
    half written is never sent.
    """

    def __init__(self) -> None:
        self._held = ""
        self._has_sent_text = False
        self._num_calls = 0

    def push(self, text: str) -> list[str | CallPiece]:
        """Return what is certain after ``text``."""
        self._held += text
        pieces: list[str | CallPiece] = []
        while self._held:
            start = self._possible_start()
            if start > 0:
                pieces.append(self._held[:start])
                self._has_sent_text = self._has_sent_text or bool(self._held[:start].strip())
                self._held = self._held[start:]
                continue
            end = self._held.find(_CLOSER) + len(_CLOSER)
            if not self._held.startswith(_TAG) or end < len(_CLOSER):
                break
            closed, self._held = self._held[:end], self._held[end:]
            pieces.extend(self._read(closed))
        return pieces

    def finish(self) -> list[str | CallPiece]:
        held, self._held = self._held, ""
        return self._read(held)

    def _possible_start(self) -> int:
        """Return where a call opens or may be opening; the length when nowhere."""
        held = self._held
        if not self._has_sent_text and held.lstrip().startswith("{"):
            return 0  # an answer that is one JSON object may be a call
        for start in range(len(held)):
            rest = held[start : start + _LONGEST]
            if any(rest.startswith(opener) or opener.startswith(rest) for opener in _OPENERS):
                return start
        return len(held)

    def _read(self, held: str) -> list[str | CallPiece]:
        from zse.text.tools import parse_tool_calls

        parsed = parse_tool_calls(held)
        pieces: list[str | CallPiece] = [parsed.content] if parsed.content else []
        for call in parsed.tool_calls:
            pieces.append(CallPiece(self._num_calls, call.name, call.arguments_json))
            self._num_calls += 1
        return pieces
