"""From Ollama's messages to a conversation, and from its options to what is drawn.

Ollama's calls have no ids where its clients are older than these; their results come in the order
of the calls, or name the tool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.serve.conversation import Conversation, OfferedTool
from zse.serve.http.errors import BadRequestError
from zse.serve.openai.protocol import GenerationFields
from zse.serve.transcript import Transcript, call_of

if TYPE_CHECKING:
    from zse.serve.ollama.protocol import (
        OllamaChatRequest,
        OllamaFields,
        OllamaGenerateRequest,
        OllamaMessage,
        OllamaOptions,
    )
    from zse.serve.openai.protocol import Tool
    from zse.text.grammar.spec import GrammarSpec


def chat_of(body: OllamaChatRequest) -> Conversation:
    """Return the conversation of /api/chat.

    Raises:
        BadRequestError: A message says what its role cannot say.
        GrammarError: The form of the answer is damaged or too large.
    """
    transcript, calls = Transcript(), _Calls()
    for index, message in enumerate(body.messages):
        _add(transcript, calls, message, f"messages[{index}]")
    tools = tuple(map(_offered, body.tools or ()))
    return replace(_conversation(body, transcript.messages()), tools=tools)


def question_of(body: OllamaGenerateRequest) -> Conversation:
    """Return the conversation of /api/generate: one question.

    Raises:
        GrammarError: As ``chat_of``.
    """
    system = [{"role": "system", "content": body.system}] if body.system else []
    return _conversation(body, [*system, {"role": "user", "content": body.prompt}])


def fields_of(body: OllamaFields) -> GenerationFields:
    """Return how answers are drawn, in the words of other protocols."""
    options = body.options
    if options is None:
        return GenerationFields()
    return GenerationFields(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )


def max_tokens_of(options: OllamaOptions | None) -> int | None:
    """Return how long answers may be; None where as many tokens as fit, which -1 and -2 ask for."""
    asked = None if options is None else options.num_predict
    return None if asked is None or asked < 0 else asked


def form_of(asked: str | dict[str, Any] | None) -> GrammarSpec | None:
    """Return what the text of an answer is held to; None for any text.

    Raises:
        BadRequestError: It is neither ``json`` nor a schema.
        GrammarError: The schema is damaged or too large.
    """
    if not asked and asked != {}:
        return None
    from zse.text.grammar.spec import GrammarError, json_object, json_schema

    if isinstance(asked, str) and asked != "json":
        raise BadRequestError(
            f"'format' is {asked[:40]!r}, expected 'json' or a JSON schema.", param="format"
        )
    try:
        form = json_object() if isinstance(asked, str) else json_schema(asked, strict=False)
    except GrammarError as error:
        error.param = "format"
        raise
    return replace(form, param="format")


def _conversation(body: OllamaFields, messages: list[dict[str, Any]]) -> Conversation:
    effort = {True: "medium", False: "none"}.get(body.think, body.think)  # type: ignore[arg-type]
    return Conversation(messages=messages, form=form_of(body.format), effort=effort)


def _offered(tool: Tool) -> OfferedTool:
    function = tool.function
    return OfferedTool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters,
        is_strict=bool(function.strict),
    )


class _Calls:
    """Calls that wait for their results."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, str]] = []
        self._count = 0

    def open(self, name: str, call_id: str | None) -> str:
        """Return the id of a call."""
        self._count += 1
        call_id = call_id or f"call{self._count:05}"  # nine characters, as Mistral's must have
        self._waiting.append((call_id, name))
        return call_id

    def close(self, message: OllamaMessage, where: str) -> str:
        """Return the id of the call that a result is of: the one it names, or the oldest."""
        named = message.tool_call_id
        for place, (call_id, name) in enumerate(self._waiting):
            if call_id == named if named else message.tool_name in (None, name):
                del self._waiting[place]
                return call_id
        raise BadRequestError(
            f"{where} is a tool's result, and no call before it waits for one.", param=where
        )


def _add(transcript: Transcript, calls: _Calls, message: OllamaMessage, where: str) -> None:
    if message.role != "assistant" and message.tool_calls:
        raise BadRequestError(
            f"{where}: calls of tools are the assistant's, not the {message.role}'s.",
            param=f"{where}.tool_calls",
        )
    text = message.content or ""
    if message.role == "tool":
        transcript.add("tool", text, tool_call_id=calls.close(message, where))
        return
    transcript.add(message.role, text, thought=message.thinking or "")
    for call in message.tool_calls or ():
        name, arguments = call.function.name, call.function.arguments or {}
        transcript.add("assistant", call=call_of(calls.open(name, call.id), name, arguments))
