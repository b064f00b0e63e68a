"""What clients of the Responses API send: structs, and what is refused or without effect."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from zse.engine.request import MAX_TOP_LOGPROBS
from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.http.fields import Refused, WithoutEffect, check_range, read_fields
from zse.serve.openai.protocol import MAX_MESSAGES, MAX_TOOLS

INCLUDED_LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"
_INCLUDABLE = frozenset(
    {INCLUDED_LOGPROBS, SEALED_REASONING, "file_search_call.results", "web_search_call.results"}
    | {"web_search_call.action.sources", "message.input_image.image_url"}
    | {"computer_call_output.output.image_url", "code_interpreter_call.outputs"}
)
Body = TypeVar("Body", bound="InputTokensRequest")
_MAX_METADATA = 16
_MAX_KEY_CHARACTERS = 64
_MAX_VALUE_CHARACTERS = 512


class Reasoning(msgspec.Struct, kw_only=True):
    """How the model thinks, and what is shown of it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """The former name of ``summary``."""

    @property
    def asked_summary(self) -> str | None:
        return self.summary or self.generate_summary


class TextFormat(msgspec.Struct, kw_only=True, rename={"schema_": "schema"}):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    """How the text of the answer is."""

    format: TextFormat | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides the events: nothing that is done here."""


class InputTokensRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/responses/input_tokens."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    previous_response_id: str | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """The body of POST /v1/responses."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    """Of tools that the server runs: there are none."""
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report for each token; None reports nothing."""
        return (self.top_logprobs or 0) if INCLUDED_LOGPROBS in (self.include or ()) else None


_OWN_STATE = "Send the items themselves, or 'previous_response_id'."
REFUSED: Refused = {
    "conversation": ((), _OWN_STATE),
    "prompt": ((), "Send the text of the prompt in 'instructions' and 'input'."),
    "moderation": ((), "Nothing is moderated here."),
    "truncation": (("disabled",), "What is too long is refused, never cut."),
}
WITHOUT_EFFECT: WithoutEffect = {
    "stream_options.include_obfuscation": (False,),
    "text.verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": (),
    "context_management": ([],),
}


def read_response(mapping: dict[str, Any]) -> tuple[ResponsesRequest, tuple[str, ...]]:
    """Return a checked request and the names of its fields without effect.

    Raises:
        UnsupportedParameterError: A known field asks for something this server does not do.
        BadRequestError: A field has the wrong type, shape or range; ``param`` names it.
    """
    body, ignored = _read(mapping, ResponsesRequest)
    check_range("temperature", body.temperature, 0, 2)
    check_range("top_p", body.top_p, 0, 1)
    check_range("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if body.background and not body.is_stored:
        raise BadRequestError("'background' needs 'store': nobody waits for it.", param="store")
    if body.stream_options is not None and not body.stream:
        raise BadRequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is true.",
            param="stream_options",
        )
    for name in body.include or ():
        if name not in _INCLUDABLE:
            raise BadRequestError(
                f"'include' holds '{name[:80]}', which is none of OpenAI's values.", param="include"
            )
    _check_metadata(body.metadata or {})
    return body, (*ignored, *_without_effect(body))


def read_count(mapping: dict[str, Any]) -> tuple[InputTokensRequest, tuple[str, ...]]:
    """As ``read_response``, for what is only counted."""
    return _read(mapping, InputTokensRequest)


def _read(mapping: dict[str, Any], kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    body, ignored = read_fields(mapping, kind, refused=REFUSED, without_effect=WITHOUT_EFFECT)
    if body.input is None and body.previous_response_id is None:
        raise MissingParameterError("input")
    for name, values, most in (
        ("input", body.input, MAX_MESSAGES),
        ("tools", body.tools, MAX_TOOLS),
    ):
        if isinstance(values, list) and len(values) > most:
            raise BadRequestError(f"'{name}' holds more than {most} items.", param=name)
    return body, ignored


def _check_metadata(metadata: dict[str, str]) -> None:
    is_small = len(metadata) <= _MAX_METADATA and all(
        len(key) <= _MAX_KEY_CHARACTERS and len(value) <= _MAX_VALUE_CHARACTERS
        for key, value in metadata.items()
    )
    if not is_small:
        raise BadRequestError(
            f"'metadata' holds more than {_MAX_METADATA} pairs, a key of more than "
            f"{_MAX_KEY_CHARACTERS} characters or a value of more than {_MAX_VALUE_CHARACTERS}.",
            param="metadata",
        )


def _without_effect(body: ResponsesRequest) -> list[str]:
    """Name nested fields that are accepted and do nothing."""
    names = {
        "reasoning.summary": bool(body.reasoning and body.reasoning.asked_summary == "concise"),
        f"include[{SEALED_REASONING}]": SEALED_REASONING in (body.include or ()),
    }
    return [name for name, is_there in names.items() if is_there]
