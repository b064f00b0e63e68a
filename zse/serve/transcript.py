"""A conversation put together message by message, in the words of chat templates.

What one turn says may come in several pieces; they are joined once, so that long conversations take
linear time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zse.serve.openai.conversation import parsed_arguments

if TYPE_CHECKING:
    from collections.abc import Collection

Message = dict[str, Any]
_BETWEEN_PIECES = "\n\n"


@dataclass
class _Turn:
    role: str
    facts: Message
    """What stands in the message besides the following."""
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)

    def message(self) -> Message:
        content = _BETWEEN_PIECES.join(filter(None, self.texts))
        message: Message = {"role": self.role, "content": content, **self.facts}
        if thoughts := _BETWEEN_PIECES.join(filter(None, self.thoughts)):
            message["reasoning_content"] = thoughts
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class Transcript:
    """Takes messages.

    Args:
        joined_roles: Whose messages in a row are one turn.
    """

    def __init__(self, *, joined_roles: Collection[str] = ("assistant",)) -> None:
        self._joined_roles = joined_roles
        self._turns: list[_Turn] = []

    def add(
        self,
        role: str,
        text: str = "",
        *,
        thought: str = "",
        call: Message | None = None,
        **facts: str,
    ) -> None:
        """Add a message, or a piece of one.

        Args:
            role: As templates call it.
            text: What is said.
            thought: What was thought before.
            call: As ``call_of`` makes it.
            facts: More fields of the message: ``tool_call_id``.
        """
        if not self._turns or role != self._turns[-1].role or role not in self._joined_roles:
            self._turns.append(_Turn(role, facts))
        turn = self._turns[-1]
        turn.texts.append(text)
        turn.thoughts.append(thought)
        if call is not None:
            turn.calls.append(call)

    def messages(self) -> list[Message]:
        return [turn.message() for turn in self._turns]


def call_of(call_id: str, name: str, arguments: str | dict[str, Any]) -> Message:
    """Return an earlier call of the assistant; templates print its arguments as JSON themselves."""
    if isinstance(arguments, str):
        arguments = parsed_arguments(arguments)
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
