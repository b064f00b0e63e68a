"""Every field of every route in one place: honoured, refused, accepted, or without effect.

The tables are those that the routes read their bodies with. Imported by the documentation and by
the test that sends each field to a running server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from zse.records import record
from zse.serve.anthropic import protocol as anthropic
from zse.serve.ollama import protocol as ollama
from zse.serve.openai import protocol, tokens
from zse.serve.openai.field_table import WITHOUT_EFFECT
from zse.serve.responses import protocol as responses
from zse.serve.vectors import protocol as vectors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.serve.http.fields import Refused, WithoutEffect

Verdict: TypeAlias = Literal["honoured", "accepted", "refused", "without effect"]
_BLOCKS = ("system[]", "messages[].content[]", "messages[].content[].content[]")
"""Where Anthropic's clients write blocks."""
ACCEPTED = frozenset(
    {"user", "metadata", "safety_identifier", "prompt_cache_key", "messages[].content[].type"}
    | {"max_tool_calls", "metadata.user_id", "cache_control", "tools[].cache_control"}
    | {"messages[].content[].signature", "messages[].content[].data"}
    | {f"{block}.{name}" for block in _BLOCKS for name in ("cache_control", "citations")}
)
"""Fields of structs that change no answer, and are read for the logs of others at most."""


@record
class FieldTable:
    """How one body is read."""

    refused: Refused
    without_effect: WithoutEffect


def _tables_of(
    refused_by_kind: Mapping[Any, Refused], without_effect: WithoutEffect
) -> dict[type[msgspec.Struct], FieldTable]:
    return {
        kind: FieldTable(refused=refused, without_effect=without_effect)
        for kind, refused in refused_by_kind.items()
    }


_TOKENS = (tokens.TokenizeRequest, tokens.DetokenizeRequest)
_MESSAGES = (anthropic.MessagesRequest, anthropic.CountTokensRequest)
_RESPONSES = (responses.ResponsesRequest, responses.InputTokensRequest)
TABLES = {
    **_tables_of(protocol.REFUSED, WITHOUT_EFFECT),
    **_tables_of(vectors.REFUSED, WITHOUT_EFFECT),
    **_tables_of(dict.fromkeys(_TOKENS, tokens.REFUSED), WITHOUT_EFFECT),
    **_tables_of(dict.fromkeys(_MESSAGES, anthropic.REFUSED), anthropic.WITHOUT_EFFECT),
    **_tables_of(ollama.REFUSED, ollama.WITHOUT_EFFECT),
    **_tables_of(dict.fromkeys(_RESPONSES, responses.REFUSED), responses.WITHOUT_EFFECT),
}
"""By the struct that a body is read into."""


@record
class FieldRow:
    """What is done with one field."""

    path: str
    verdict: Verdict
    kind: str = ""
    """Its type, where it is honoured or accepted."""
    is_required: bool = False
    asks_nothing: tuple[object, ...] = ()
    """Values that are neither refused nor reported."""
    advice: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    """Of the objects on its way that are one of several kinds: the path of what says which, and
    what it says."""


def rows_of(kind: type[msgspec.Struct]) -> Iterator[FieldRow]:
    """Yield every field that is known of a body, nested ones with their paths."""
    table = TABLES[kind]
    yield from _struct_rows(msgspec.inspect.type_info(kind), "", ())
    for path, (asks_nothing, advice) in table.refused.items():
        if _may_stand_in(kind, path):
            yield FieldRow(path=path, verdict="refused", asks_nothing=asks_nothing, advice=advice)
    for path, asks_nothing in table.without_effect.items():
        if _may_stand_in(kind, path) and path not in table.refused:
            yield FieldRow(path=path, verdict="without effect", asks_nothing=asks_nothing)


def _may_stand_in(kind: type[msgspec.Struct], path: str) -> bool:
    """Whether a body has the object that a path leads into."""
    first, dot, _ = path.partition(".")
    return not dot or first.removesuffix("[]") in kind.__struct_encode_fields__


def _struct_rows(info: Any, where: str, tags: tuple[tuple[str, str], ...]) -> Iterator[FieldRow]:
    if info.tag_field is not None:
        tags = (*tags, (f"{where}{info.tag_field}", info.tag))
    for entry in info.fields:
        path = f"{where}{entry.encode_name}"
        yield FieldRow(
            path=path,
            verdict="accepted" if path in ACCEPTED else "honoured",
            kind=_name_of(entry.type),
            is_required=entry.required,
            tags=tags,
        )
        for inner, suffix in _structs_in(entry.type):
            yield from _struct_rows(inner, f"{path}{suffix}.", tags)


def _structs_in(info: Any, suffix: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the structs that a field may hold, with what stands behind its name for each."""
    if isinstance(info, msgspec.inspect.StructType):
        yield info, suffix
    elif isinstance(info, msgspec.inspect.ListType):
        yield from _structs_in(info.item_type, f"{suffix}[]")
    elif isinstance(info, msgspec.inspect.UnionType):
        for one in info.types:
            yield from _structs_in(one, suffix)


_NAMES: dict[type, str] = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.IntType: "whole number",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.AnyType: "anything",
    msgspec.inspect.DictType: "object",
    msgspec.inspect.StructType: "object",
}


def _name_of(info: Any) -> str:
    """Return what a type is called by people; null is always allowed where a field may be left."""
    match info:
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case msgspec.inspect.ListType(item_type=inner):
            return f"list of {_name_of(inner)}"
        case msgspec.inspect.UnionType(types=types):
            names = [_name_of(one) for one in types]
            return " or ".join(dict.fromkeys(name for name in names if name))
    return _NAMES.get(type(info), "")
