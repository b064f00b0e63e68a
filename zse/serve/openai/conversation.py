"""From a chat request to a conversation: checks its messages and its tools."""

from __future__ import annotations

import json
from typing import Any

from zse.engine.request import MAX_TOP_LOGPROBS
from zse.serve.conversation import Conversation, OfferedTool, PromptEnd, ToolChoice
from zse.serve.http.errors import BadRequestError, MissingParameterError, UnsupportedParameterError
from zse.serve.http.fields import check_range
from zse.serve.openai.protocol import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatRequest,
    FunctionDefinition,
    Message,
)
from zse.serve.openai.sampling import form_asked_by

_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "bos_token"}
    | {"eos_token", "continue_final_message", "return_dict", "raise_exception", "strftime_now"}
    | {"documents", "self"}
)


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
    _check_tools(request)
    _check_end(request)
    for name in request.chat_template_kwargs or {}:
        if name in _RESERVED or name.startswith("_"):
            raise BadRequestError(
                f"'chat_template_kwargs' must not set '{name}'.", param="chat_template_kwargs"
            )


def _check_tools(request: ChatRequest) -> None:
    if len(request.tools or ()) > MAX_TOOLS:
        raise BadRequestError(f"'tools' holds more than {MAX_TOOLS} tools.", param="tools")
    choice = request.tool_choice
    if choice is None or choice == "none":
        return
    if choice not in ("auto", "required") and not isinstance(choice, dict):
        raise BadRequestError(
            "'tool_choice' is none of 'none', 'auto', 'required' or a function.",
            param="tool_choice",
        )
    if not request.tools:
        raise BadRequestError(
            "'tool_choice' is only allowed when 'tools' are given.", param="tool_choice"
        )
    if choice != "auto":
        raise UnsupportedParameterError(
            "tool_choice",
            "A call cannot be forced here yet: use 'auto', and name the tool in a message.",
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


def without_effect(request: ChatRequest) -> list[str]:
    """Name nested fields that are accepted and do nothing."""
    is_strict = any(tool.function.strict for tool in request.tools or ())
    return ["tools[].function.strict"] if is_strict else []


def conversation_of(request: ChatRequest) -> Conversation:
    """Return what a checked request asks to be answered.

    Raises:
        BadRequestError: A message has parts that are not text, or the wrong fields for its role.
    """
    return Conversation(
        messages=[_template_message(message, i) for i, message in enumerate(request.messages)],
        tools=tuple(_offered(tool.function) for tool in request.tools or ()),
        choice=ToolChoice(mode="none" if request.tool_choice == "none" else "auto"),
        parallel_calls=request.parallel_tool_calls is not False,
        template_variables=request.chat_template_kwargs or {},
        form=form_asked_by(request),
        end=_prompt_end(request),
    )


def _template_message(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
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
        if role != "assistant":
            raise BadRequestError(
                f"'{where}.tool_calls' is only allowed for the assistant.",
                param=f"{where}.tool_calls",
            )
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return result


def _text_of(message: Message, where: str) -> str:
    content = message.content
    if content is None:
        if message.role == "assistant":
            return ""
        raise BadRequestError(
            f"'{where}.content' is null, expected text.", param=f"{where}.content"
        )
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if part.type not in ("text", "refusal") or part.text is None:
            raise BadRequestError(
                f"'{where}.content[{i}]' is of type '{part.type[:40]}'; only text is read.",
                param=f"{where}.content",
                code="unsupported_content",
            )
        texts.append(part.text)
    return "\n".join(texts)


def _arguments(text: str) -> Any:
    """Parse the arguments of an earlier call: templates print them as JSON themselves."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _offered(function: FunctionDefinition) -> OfferedTool:
    return OfferedTool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters,
        is_strict=bool(function.strict),
    )
