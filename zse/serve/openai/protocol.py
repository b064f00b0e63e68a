"""The requests that clients send, as msgspec structs: the fields that are honoured."""

from __future__ import annotations

import contextlib
from typing import Any, Literal, TypeVar

import msgspec

from zse.engine.request import MAX_CHOICES, MAX_TOP_LOGPROBS
from zse.serve.http.errors import BadRequestError
from zse.serve.http.fields import check_range, read_fields
from zse.serve.openai.field_table import CHAT_REFUSED, COMPLETION_REFUSED, WITHOUT_EFFECT

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_STOPS = 16
MAX_PROMPTS = 128
_SEED_LIMIT = 2**63


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message; only text parts can be served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """A call that the assistant made earlier; ``arguments`` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCallMessage(msgspec.Struct, kw_only=True):
    """A tool call inside an assistant message of the history."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    """What the assistant said instead of an answer."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Another name for it."""


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool offered to the model."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct, kw_only=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """A tool by its name."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, kw_only=True):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ToolChoiceFields(msgspec.Struct, kw_only=True):
    """``tool_choice`` where it is an object."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Every chunk says what has been used so far."""


class DocumentsAsked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the documents of a key are searched for what answers a question."""

    top_k: int = 5
    """Excerpts at most."""
    ids: list[str] | None = None
    """Documents to look in; all without it."""
    max_characters: int | None = None
    """Of the excerpts together; never more than half of the model's context."""
    embedder: str | None = None
    """As in a search."""
    reranker: str | None = None
    """As in a search."""


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields that chat and text completions share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    # Beyond OpenAI's: the names vLLM and SGLang use.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    deterministic: bool | None = None
    cache_salt: str | None = None
    # The form of the answer, in the words of OpenAI, vLLM, SGLang and llama.cpp: see ``form``.
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None
    json_schema: dict[str, Any] | str | bool | None = None
    grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None


FORM_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "json_schema",
    "grammar",
    "regex",
    "ebnf",
)
"""Fields that ask for a form of the answer."""


class ChatRequest(GenerationFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    server_tools: bool | list[str] | None = None
    """Tools that the server runs itself and whose results the answer goes on with: all, or some."""
    documents: bool | DocumentsAsked | None = None
    """Excerpts of the key's documents are given to the model with the last question."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


_RANGES = {
    "n": (1, MAX_CHOICES),
    "prompt_logprobs": (0, MAX_TOP_LOGPROBS),
    "seed": (-_SEED_LIMIT, _SEED_LIMIT - 1),
    "temperature": (0, 2),
    "top_p": (0, 1),
}

REFUSED = {ChatRequest: CHAT_REFUSED, CompletionRequest: COMPLETION_REFUSED}

RequestType = TypeVar("RequestType", ChatRequest, CompletionRequest)


def read_request(
    mapping: dict[str, Any], kind: type[RequestType]
) -> tuple[RequestType, tuple[str, ...]]:
    """Check a mapping and convert it to a typed request.

    Returns:
        The request, and the names of fields that have no effect.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type or shape; ``param`` names it.
    """
    request, ignored = read_fields(
        mapping, kind, refused=REFUSED[kind], without_effect=WITHOUT_EFFECT
    )
    _check_shared(request)
    return request, ignored


def prepare_reading() -> None:
    """Have what reads requests made now, which takes milliseconds: not when the first one comes."""
    for kind in REFUSED:
        with contextlib.suppress(msgspec.ValidationError):  # nothing is asked
            msgspec.convert({}, kind)


def _check_shared(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise BadRequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is true.",
            param="stream_options",
        )
    for name, (low, high) in _RANGES.items():
        check_range(name, getattr(request, name), low, high)
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise BadRequestError(
            f"'stop' holds {len(stops)} texts, expected at most {MAX_STOPS}.", param="stop"
        )
