"""The form that a request asks its answers to have, in all the ways that clients ask for one.

OpenAI's ``response_format``; vLLM's ``guided_*`` and ``structured_outputs``; SGLang's ``regex``,
``ebnf`` and ``json_schema``; llama.cpp's ``grammar`` and ``json_schema``. One answer has one form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zse.serve.http.errors import BadRequestError, MissingParameterError
from zse.serve.openai.protocol import FORM_FIELDS
from zse.text.grammar import spec as forms
from zse.text.grammar.spec import GrammarError, GrammarSpec, Whitespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.openai.protocol import GenerationFields


class JSONSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``response_format.json_schema``."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None
    schema: dict[str, Any] | bool | None = None
    """Of a ``json_object``, as llama.cpp has it."""


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``structured_outputs``: exactly one form, and how JSON is spaced."""

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: str | None = None
    structural_tag: None = None


_SIMPLE: dict[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "json_schema": "json",
    "grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Fields of a body, and what they are called in ``structured_outputs``."""


def form_of(body: GenerationFields) -> GrammarSpec | None:
    """Return the form that a body asks for, None for any text.

    Raises:
        GrammarError: The form is damaged or too large; ``param`` names the field.
        BadRequestError: The body asks for two, or a field has the wrong shape.
    """
    asked = [name for name in FORM_FIELDS if getattr(body, name) not in (None, False)]
    found = [(name, form) for name in asked if (form := _read(name, body)) is not None]
    if len(found) > 1:
        raise BadRequestError(
            f"'{found[0][0]}' and '{found[1][0]}' both ask for a form; one answer has one.",
            param=found[1][0],
        )
    return found[0][1] if found else None


def _read(name: str, body: GenerationFields) -> GrammarSpec | None:
    value = getattr(body, name)
    try:
        if name == "response_format":
            form = _of_format(msgspec.convert(value, ResponseFormat))
        elif name == "structured_outputs":
            form = _of_outputs(msgspec.convert(value, StructuredOutputs))
        else:
            pattern = body.guided_whitespace_pattern
            given = {_SIMPLE[name]: value, "whitespace_pattern": pattern}
            form = _of_outputs(msgspec.convert(given, StructuredOutputs))
    except msgspec.ValidationError as error:
        raise BadRequestError(f"Invalid value for '{name}': {error}."[:400], param=name) from None
    except MissingParameterError:
        raise
    except GrammarError as error:
        error.param = name
        raise
    return None if form is None else replace(form, param=name)


def _of_format(asked: ResponseFormat) -> GrammarSpec | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return forms.json_object() if asked.schema is None else forms.json_schema(asked.schema)
    if asked.json_schema is None:
        raise MissingParameterError("response_format.json_schema")
    schema = asked.json_schema.schema
    if schema is None:
        return forms.json_object()
    return forms.json_schema(schema, strict=bool(asked.json_schema.strict))


def _of_outputs(asked: StructuredOutputs) -> GrammarSpec:
    whitespace = forms.COMPACT if asked.disable_any_whitespace else forms.FLEXIBLE
    if asked.whitespace_pattern is not None:
        whitespace = Whitespace(pattern=asked.whitespace_pattern)
    makers: dict[str, Callable[[], GrammarSpec]] = {
        "json": lambda: forms.json_schema(asked.json or {}, whitespace=whitespace),
        "json_object": lambda: forms.json_object(whitespace=whitespace),
        "regex": lambda: forms.regex(asked.regex or ""),
        "choice": lambda: forms.choice(asked.choice or []),
        "grammar": lambda: forms.context_free(asked.grammar or ""),
    }
    chosen = [name for name in makers if getattr(asked, name) not in (None, False)]
    if len(chosen) != 1:
        raise GrammarError(
            f"{len(chosen)} forms are asked for, expected one of {', '.join(makers)}"
        )
    return makers[chosen[0]]()
