"""From a chat request to a conversation: checks its messages and its tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.engine.request import MAX_TOP_LOGPROBS
from zse.serve.conversation import Conversation, PromptEnd
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.http.fields import check_range
from zse.serve.openai.protocol import MAX_MESSAGES, ChatRequest, Message
from zse.serve.openai.sampling import form_asked_by
from zse.serve.openai.tools import check_name, check_tools, choice_of, offered_tools

if TYPE_CHECKING:
    from zse.serve.openai.protocol import ContentPart
    from zse.serve.state import LoadedModel

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "bos_token"}
    | {"eos_token", "continue_final_message", "return_dict", "raise_exception", "strftime_now"}
    | {"documents", "self"}
)

_OF_ASSISTANT = ("tool_calls", "refusal", "reasoning_content", "reasoning")


def check_chat(request: ChatRequest) -> None:
    """Refuse what the types allow and the protocol or this server does not.

    Raises:
        BadRequestError: A value is out of range or two fields contradict each other.
        UnsupportedParameterError: The request asks for something this server does not enforce.
    """
    if not 0 < len(request.messages) <= MAX_MESSAGES:
        raise BadRequestError(
            f"'messages' holds {len(request.messages)} messages, expected 1 to {MAX_MESSAGES}.",
            param="messages",
        )
    if request.top_logprobs is not None:
        check_range("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)
        if not request.logprobs:
            raise BadRequestError(
                "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
            )
    both = request.max_tokens is not None and request.max_completion_tokens is not None
    if both and request.max_tokens != request.max_completion_tokens:
        raise BadRequestError(
            "'max_tokens' and 'max_completion_tokens' are both set and differ.", param="max_tokens"
        )
    if request.stream and request.prompt_logprobs is not None:
        raise BadRequestError(
            "'prompt_logprobs' is not allowed when 'stream' is true.", param="prompt_logprobs"
        )
    check_tools(request)
    _check_end(request)
    for name in request.chat_template_kwargs or {}:
        if name in _RESERVED or name.startswith("_"):
            raise BadRequestError(
                f"'chat_template_kwargs' must not set '{name}'.", param="chat_template_kwargs"
            )


def _check_end(request: ChatRequest) -> None:
    if not request.continue_final_message:
        return
    if request.add_generation_prompt:
        raise BadRequestError(
            "'continue_final_message' and 'add_generation_prompt' are both true: an answer either "
            "goes on with the last message or begins a new one.",
            param="continue_final_message",
        )
    if request.messages[-1].role != "assistant":
        raise BadRequestError(
            f"The last message is the {request.messages[-1].role}'s: "
            "'continue_final_message' goes on with the assistant's.",
            param="continue_final_message",
        )


def _prompt_end(request: ChatRequest) -> PromptEnd:
    if request.continue_final_message:
        return "continued"
    return "closed" if request.add_generation_prompt is False else "answer"


def echo_of(request: ChatRequest) -> str:
    """Return what answers begin with: the assistant's last message, if it is to be echoed."""
    last = request.messages[-1]
    is_echoed = request.echo and last.role == "assistant"
    return _text_of(last, "messages[-1]") if is_echoed else ""


def without_effect(request: ChatRequest, model: LoadedModel) -> list[str]:
    """Name fields that this model can do nothing with."""
    thinking = model.dialect.thinking
    found = []
    is_strict = any(tool.function.strict for tool in request.tools or ())
    if is_strict and request.tool_choice in (None, "auto") and not model.dialect.keeps_schemas:
        found.append("tools[].function.strict")
    if request.reasoning_effort and not thinking.variables(request.reasoning_effort):
        found.append("reasoning_effort")
    if not thinking.history_key and any(map(_reasoning_of, request.messages)):
        found.append("messages[].reasoning_content")
    return found


def conversation_of(request: ChatRequest) -> Conversation:
    """Return what a checked request asks to be answered.

    Raises:
        BadRequestError: A message has parts that are not text, or the wrong fields for its role.
    """
    return Conversation(
        messages=[_template_message(message, i) for i, message in enumerate(request.messages)],
        tools=offered_tools(request),
        choice=choice_of(request),
        parallel_calls=request.parallel_tool_calls is not False,
        effort=request.reasoning_effort,
        template_variables=request.chat_template_kwargs or {},
        form=form_asked_by(request),
        end=_prompt_end(request),
    )


def _template_message(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    _check_fields(message, where)
    # Models know no developer; OpenAI defines it as the system message of newer models.
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _text_of(message, where)}
    if message.name is not None:
        result["name"] = message.name
    if role == "tool":
        if message.tool_call_id is None:
            raise MissingParameterError(f"{where}.tool_call_id")
        result["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        result["tool_calls"] = _template_calls(message, f"{where}.tool_calls")
    if thought := _reasoning_of(message):
        result["reasoning_content"] = thought
    return result


def _check_fields(message: Message, where: str) -> None:
    for name in _OF_ASSISTANT:
        if getattr(message, name) and message.role != "assistant":
            raise BadRequestError(
                f"'{where}.{name}' is only allowed for the assistant.", param=f"{where}.{name}"
            )


def _template_calls(message: Message, where: str) -> list[dict[str, Any]]:
    calls = []
    for i, call in enumerate(message.tool_calls or ()):
        check_name(call.function.name, f"{where}[{i}].function.name")
        arguments = parsed_arguments(call.function.arguments)
        function = {"name": call.function.name, "arguments": arguments}
        calls.append({"id": call.id, "type": "function", "function": function})
    return calls


def _reasoning_of(message: Message) -> str:
    return message.reasoning_content or message.reasoning or ""


def _text_of(message: Message, where: str) -> str:
    content = message.content
    if content is None:
        if message.role == "assistant":
            return message.refusal or ""
        raise BadRequestError(
            f"'{where}.content' is null, expected text.", param=f"{where}.content"
        )
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, f"{where}.content", i) for i, part in enumerate(content))


def _part_text(part: ContentPart, where: str, index: int) -> str:
    # A client hands back the refusal that it got; both names of its text are in use.
    texts = {"text": part.text, "refusal": part.refusal or part.text}
    if (text := texts.get(part.type)) is None:
        raise BadRequestError(
            f"'{where}[{index}]' is of type '{part.type[:40]}'; only text is read.",
            param=where,
            code="unsupported_content",
        )
    return text


def parsed_arguments(text: str) -> Any:
    """Return the arguments of an earlier call: templates print them as JSON themselves.

    Text that is no JSON is returned as it is.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
