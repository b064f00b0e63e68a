"""Tool calls out of answers: ``zse.text`` finds them, this file puts them into the API's terms."""

from __future__ import annotations

from dataclasses import dataclass

_OPENERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>")


@dataclass(frozen=True, kw_only=True)
class WholeCall:
    """A complete call; ``arguments`` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class CallPiece:
    """A part of a streamed call. ``name`` is set on the first part of a call only."""

    index: int
    name: str | None
    arguments: str


def read_whole_answer(text: str) -> tuple[str, list[WholeCall]]:
    """Return the text beside the calls, and the calls."""
    from zse.text.tools import parse_tool_calls

    parsed = parse_tool_calls(text)
    calls = [WholeCall(name=call.name, arguments=call.arguments_json) for call in parsed.tool_calls]
    return parsed.content or "", calls


class ToolReader:
    """Splits a streamed answer into text and calls.

    Text flows until something that may open a call; from there on it is held until the end, when
    the same parser as for whole answers decides. A call that is half written is never sent.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_holding = False
        self._has_sent_text = False

    def push(self, text: str) -> list[str | CallPiece]:
        """Return what is certain after ``text``."""
        self._held += text
        if self._is_holding:
            return []
        start = self._possible_start()
        ready, self._held = self._held[:start], self._held[start:]
        self._is_holding = any(self._held.startswith(opener) for opener in _OPENERS)
        self._has_sent_text = self._has_sent_text or bool(ready.strip())
        return [ready] if ready else []

    def _possible_start(self) -> int:
        """Return where a call opens or may be opening; the length when nowhere."""
        held = self._held
        if not self._has_sent_text and held.lstrip().startswith("{"):
            self._is_holding = True
            return 0
        for start in range(len(held)):
            rest = held[start:]
            if any(rest.startswith(opener) or opener.startswith(rest) for opener in _OPENERS):
                return start
        return len(held)

    def finish(self) -> list[str | CallPiece]:
        """Return what was held, as calls where it is calls."""
        text, calls = read_whole_answer(self._held)
        self._held = ""
        pieces: list[str | CallPiece] = [text] if text else []
        pieces.extend(
            CallPiece(index=index, name=call.name, arguments=call.arguments)
            for index, call in enumerate(calls)
        )
        return pieces
