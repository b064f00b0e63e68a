"""What the Responses API says of a response: the object itself, its items, its usage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zse.serve.openai.logprobs import chat_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.output import TokenLogprob
    from zse.engine.request import SamplingParams
    from zse.serve.answer_parts import Part
    from zse.serve.responses.items import Item
    from zse.serve.responses.protocol import ResponsesRequest

Response = dict[str, Any]


def new_response(
    body: ResponsesRequest, params: SamplingParams, *, response_id: str, model: str
) -> Response:
    """Return a response that nothing has been made of yet; it says what it was asked with."""
    reasoning = body.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.asked_summary if reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": params.temperature,
        "text": {"format": _format_of(body), "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": False, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _format_of(body: ResponsesRequest) -> dict[str, Any]:
    form = body.text.format if body.text else None
    if form is None or form.type != "json_schema":
        return {"type": form.type if form else "text"}
    return {
        "type": "json_schema",
        "name": form.name,
        "schema": form.schema_,
        "strict": bool(form.strict),
        "description": form.description,
    }


def usage_of(usage: dict[str, Any]) -> dict[str, Any]:
    """Return a turn's usage in the words of this API."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
        },
        "total_tokens": usage["total_tokens"],
    }


def text_part(text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
    """Return the content of a message."""
    said = logprobs_of(logprobs)
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": said}


def logprobs_of(entries: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = chat_logprobs(entries)["content"] if entries else []
    return content


def opening_item(part: Part, item_id: str) -> Item:
    """Return an item as it is when it begins."""
    if part.kind == "text":
        head = {"id": item_id, "type": "message", "status": "in_progress"}
        return {**head, "role": "assistant", "content": []}
    if part.kind == "reasoning":
        return {"id": item_id, "type": "reasoning", "status": "in_progress", "summary": []}
    return {
        "id": item_id,
        "type": "function_call",
        "status": "in_progress",
        "arguments": "",
        "call_id": part.call_id,
        "name": part.name,
    }


def whole_item(part: Part, item_id: str, *, is_summarized: bool) -> Item:
    """Return an item as it is in the end.

    Args:
        is_summarized: Thoughts are shown as their own summary, not as what was thought.
    """
    item = opening_item(part, item_id)
    item["status"] = "incomplete" if part.is_cut else "completed"
    if part.kind == "text":
        return {**item, "content": [text_part(part.text, part.logprobs)]}
    if part.kind == "call":
        return {**item, "arguments": part.text}
    if is_summarized:
        return {**item, "summary": [{"type": "summary_text", "text": part.text}]}
    return {**item, "content": [{"type": "reasoning_text", "text": part.text}]}
