"""The events of a response: numbered, each item opened, filled and closed in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.responses.items import new_id
from zse.serve.responses.output import logprobs_of, opening_item, text_part, whole_item

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.serve.answer_parts import Part, Step
    from zse.serve.responses.output import Response

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
"""What the ids of items begin with."""
_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """Writes one response.

    Args:
        response: What is known of it; its output is filled as items are closed.
        is_summarized: Thoughts are shown as a summary.
    """

    def __init__(self, response: Response, *, is_summarized: bool) -> None:
        self._response = response
        self._is_summarized = is_summarized
        self._number = 0
        self._ids: list[str] = []
        """Of the items, by the number of their part."""
        self._delta = b""
        """What the deltas of the open item begin with."""

    def add(self, step: Step) -> None:
        """Take a step without a word of it."""
        if step.kind == "opened":
            self._ids.append(new_id(_PREFIXES[step.part.kind]))
        elif step.kind == "closed":
            self._response["output"].append(self._whole(step.part))

    def step(self, step: Step) -> Iterator[bytes]:
        """Take a step and yield its events."""
        self.add(step)
        part = step.part
        if step.kind == "grown":
            yield self._grown(step)
        elif step.kind == "opened":
            yield from self._opened(part)
        else:
            yield from self._closed(part)

    def state(self, kind: str) -> bytes:
        """Return an event that shows the whole response: ``completed`` for one."""
        return self._event(f"response.{kind}", {"response": self._response})

    def _whole(self, part: Part) -> dict[str, Any]:
        return whole_item(part, self._ids[part.index], is_summarized=self._is_summarized)

    def _opened(self, part: Part) -> Iterator[bytes]:
        place = self._place(part)
        item = opening_item(part, place["item_id"])
        yield self._event("response.output_item.added", {"output_index": part.index, "item": item})
        if part.kind == "text":
            empty = {"part": text_part(""), "content_index": 0}
            yield self._event("response.content_part.added", {**place, **empty})
        elif part.kind == "reasoning":
            yield self._event(self._around("added"), {**place, **self._thoughts("")})
        kind = {"text": "response.output_text.delta", "reasoning": self._thought("delta")}.get(
            part.kind, "response.function_call_arguments.delta"
        )
        head = {"type": kind, **place}
        if part.kind != "call":
            head[self._index_name(part)] = 0
        self._delta = b"event: %s\ndata: %s" % (kind.encode(), _encode(head)[:-1] + b',"delta":')

    def _grown(self, step: Step) -> bytes:
        # One for each token: only its text is encoded.
        logprobs = b""
        if step.part.kind == "text":
            logprobs = b',"logprobs":' + (_encode(logprobs_of(step.logprobs)) or b"[]")
        number, self._number = self._number, self._number + 1
        end = b'%s,"sequence_number":%d}\n\n' % (logprobs, number)
        return self._delta + _encode(step.text) + end

    def _closed(self, part: Part) -> Iterator[bytes]:
        place, item = self._place(part), self._response["output"][-1]
        if part.kind == "text":
            said = {"text": part.text, "logprobs": logprobs_of(part.logprobs)}
            place["content_index"] = 0
            yield self._event("response.output_text.done", {**place, **said})
            yield self._event("response.content_part.done", {**place, "part": item["content"][0]})
        elif part.kind == "reasoning":
            place[self._index_name(part)] = 0
            yield self._event(self._thought("done"), {**place, "text": part.text})
            yield self._event(self._around("done"), {**place, **self._thoughts(part.text)})
        else:
            said = {"arguments": part.text, "name": part.name}
            yield self._event("response.function_call_arguments.done", {**place, **said})
        yield self._event("response.output_item.done", {"output_index": part.index, "item": item})

    def _place(self, part: Part) -> dict[str, Any]:
        return {"item_id": self._ids[part.index], "output_index": part.index}

    def _index_name(self, part: Part) -> str:
        is_summary = part.kind == "reasoning" and self._is_summarized
        return "summary_index" if is_summary else "content_index"

    def _thought(self, what: str) -> str:
        name = "reasoning_summary_text" if self._is_summarized else "reasoning_text"
        return f"response.{name}.{what}"

    def _around(self, what: str) -> str:
        name = "reasoning_summary_part" if self._is_summarized else "content_part"
        return f"response.{name}.{what}"

    def _thoughts(self, text: str) -> dict[str, Any]:
        kind = "summary_text" if self._is_summarized else "reasoning_text"
        index = "summary_index" if self._is_summarized else "content_index"
        return {"part": {"type": kind, "text": text}, index: 0}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        data = _encode({"type": kind, **fields, "sequence_number": number})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
