"""What clients of Ollama's API send: msgspec structs, and what is refused or without effect."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from zse.engine.request import MAX_TOP_LOGPROBS
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import Refused, WithoutEffect, check_range, read_fields
from zse.serve.openai.protocol import MAX_MESSAGES, MAX_STOPS, MAX_TOOLS, Tool
from zse.serve.openai.tools import check_distinct, check_name

_SEED_LIMIT = 2**63


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A call that the assistant made earlier; its arguments are an object, not its text."""

    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(msgspec.Struct, kw_only=True):
    """A tool call inside an assistant's message."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    """Whose result it is."""
    tool_call_id: str | None = None


class OllamaOptions(msgspec.Struct, kw_only=True):
    """How an answer is drawn; -1 tokens are as many as fit."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaFields(msgspec.Struct, kw_only=True):
    """Fields that both routes for answers share."""

    model: str
    format: str | dict[str, Any] | None = None
    """``json``, or a JSON schema."""
    options: OllamaOptions | None = None
    stream: bool | None = None
    """Left out, it is true."""
    think: bool | Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(OllamaFields, kw_only=True):
    """The body of POST /api/chat; without messages it only looks whether the model is there."""

    messages: list[OllamaMessage] = []
    tools: list[Tool] | None = None


class OllamaGenerateRequest(OllamaFields, kw_only=True):
    """The body of POST /api/generate; without a prompt it only looks whether the model is there."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    """The prompt is the text itself, not a question."""


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """The body of POST /api/embed."""

    model: str
    input: str | list[str]
    truncate: bool | None = None
    """Left out, it is true: the end of a text that is too long is cut off."""
    dimensions: int | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of POST /api/embeddings, which came before."""

    model: str
    prompt: str


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """The body of POST /api/show."""

    model: str


_NO_IMAGES = "Only text is read."
_SAMPLERS = "Use 'temperature', 'top_p', 'top_k' and 'min_p'."
_REFUSED: Refused = {
    "images": (([],), _NO_IMAGES),
    "messages[].images": (([],), _NO_IMAGES),
    "options.mirostat": ((0,), _SAMPLERS),
    "options.tfs_z": ((1, 1.0), _SAMPLERS),
    "options.typical_p": ((1, 1.0), _SAMPLERS),
}
REFUSED: dict[type[msgspec.Struct], Refused] = {
    OllamaChatRequest: _REFUSED,
    OllamaGenerateRequest: {
        **_REFUSED,
        "template": (("",), "The model's own template is used; 'raw' uses none."),
        "context": (([],), "Send the conversation to /api/chat."),
    },
    OllamaEmbedRequest: {},
    OllamaEmbeddingsRequest: {},
    OllamaShowRequest: {},
}
_PLACES = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap")
WITHOUT_EFFECT: WithoutEffect = {
    "keep_alive": (),
    "options.repeat_last_n": (),
    **{f"options.{name}": () for name in _PLACES},
}
"""What Ollama decides for each request is decided here when the server starts."""

Body = TypeVar("Body", bound=msgspec.Struct)


def read_ollama(mapping: dict[str, Any], kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """Return a checked request and the names of its fields without effect.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type, shape or range; ``param`` names it.
    """
    body, ignored = read_fields(mapping, kind, refused=REFUSED[kind], without_effect=WITHOUT_EFFECT)
    if isinstance(body, OllamaFields):
        _check_options(body.options or OllamaOptions())
        check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if isinstance(body, OllamaChatRequest):
        _check_chat(body)
    return body, ignored


def _check_options(options: OllamaOptions) -> None:
    check_range("options.temperature", options.temperature, 0, 2)
    check_range("options.top_p", options.top_p, 0, 1)
    check_range("options.seed", options.seed, -_SEED_LIMIT, _SEED_LIMIT - 1)
    stops = [options.stop] if isinstance(options.stop, str) else options.stop or []
    if len(stops) > MAX_STOPS:
        raise BadRequestError(
            f"'options.stop' holds {len(stops)} texts, expected at most {MAX_STOPS}.",
            param="options.stop",
        )


def _check_chat(body: OllamaChatRequest) -> None:
    if len(body.messages) > MAX_MESSAGES:
        raise BadRequestError(
            f"'messages' holds {len(body.messages)} messages, expected at most {MAX_MESSAGES}.",
            param="messages",
        )
    names = [tool.function.name for tool in body.tools or ()]
    if len(names) > MAX_TOOLS:
        raise BadRequestError(
            f"'tools' holds {len(names)} tools, expected at most {MAX_TOOLS}.", param="tools"
        )
    for index, name in enumerate(names):
        check_name(name, f"tools[{index}].function.name")
    check_distinct(names, "tools[{}].function.name")
