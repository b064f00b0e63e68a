"""What form an answer is to have: a schema, a regular expression, a grammar, one of some texts.

Everything here came from outside, so it is held to bounds before anything works on it. What is
made of it is in ``compile``; it needs the model's tokenizer and the library that this file spares.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zse.errors import InvalidParameterError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

GrammarKind: TypeAlias = Literal["json_schema", "regex", "lark"]
"""How ``GrammarSpec.source`` is to be read."""

MAX_SOURCE_BYTES = 256 << 10
"""Longest source. OpenAI's own limit for all names and values of a schema is half of it."""
MAX_DEPTH = 64
"""Deepest nesting of a schema."""
MAX_SCHEMA_VALUES = 20_000
"""Values of all kinds in a schema: keywords, properties, members of enumerations."""
MAX_CHOICES = 10_000
_WHITESPACE = r"( {1,2}|\r?\n[ \t]{0,64})"
"""Between the parts of JSON. Bounded, because models that are lost write line ends for ever."""


_SLASH_OR_ESCAPED = re.compile(r"\\.|[/\n]", re.DOTALL)
"""What an expression has escaped itself stays as it is: ``a\\/b`` must not end behind ``a\\``."""


class GrammarError(InvalidParameterError):
    """A grammar cannot be used: it is damaged, too large, or asks for what cannot be kept."""


@record
class Whitespace:
    """What may stand between the parts of JSON."""

    pattern: str = _WHITESPACE
    """A regular expression; empty for none."""
    item_separator: str = ","
    key_separator: str = ":"


FLEXIBLE = Whitespace()
COMPACT = Whitespace(pattern="", item_separator=", ", key_separator=": ")
"""One line, as Python prints it. More of it has only one choice, so it is written faster."""


@record
class GrammarSpec:
    """The form of an answer. Equal specs are compiled once.

    Raises:
        GrammarError: The source is longer than ``MAX_SOURCE_BYTES``.
    """

    kind: GrammarKind
    source: str
    starts_after: tuple[str, ...] = ()
    """Texts behind which the form begins, such as ``</think>``; before them the answer may be
    anything, but it does not end. With none the form begins with the answer."""
    may_open: tuple[str, ...] = ()
    """Texts with which the part before the form begins, such as ``<think>``. With some, an answer
    may leave that part out; with none, it begins within it."""
    param: str = field(default="", compare=False)
    """What a request calls the field that asked for it, for errors."""

    def __post_init__(self) -> None:
        length = len(self.source.encode("utf-8", "surrogatepass"))
        if length > MAX_SOURCE_BYTES:
            raise GrammarError(
                f"the grammar has {length} bytes, expected at most {MAX_SOURCE_BYTES}"
            )


def json_object(*, whitespace: Whitespace = FLEXIBLE) -> GrammarSpec:
    """Return the form of any JSON object."""
    return json_schema({"type": "object"}, whitespace=whitespace)


def json_schema(
    schema: Mapping[str, Any] | bool | str,
    *,
    strict: bool = True,
    whitespace: Whitespace = FLEXIBLE,
) -> GrammarSpec:
    """Return the form of JSON that a schema describes.

    Args:
        schema: The schema, or its JSON text.
        strict: Refuse keywords that cannot be enforced; otherwise they are left out of account.
        whitespace: What may stand between the parts.

    Raises:
        GrammarError: It is no schema, or too large.
    """
    if isinstance(schema, str):
        schema = _parsed(schema)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema is a {type(schema).__name__}, expected an object")
    check_size(schema)
    options: dict[str, Any] = {
        "item_separator": whitespace.item_separator,
        "key_separator": whitespace.key_separator,
        "whitespace_flexible": bool(whitespace.pattern),
        "lenient": not strict,
    }
    if whitespace.pattern:
        options["whitespace_pattern"] = whitespace.pattern
    return GrammarSpec(kind="json_schema", source=_text({**schema, "x-guidance": options}))


def regex(pattern: str) -> GrammarSpec:
    """Return the form of texts that a regular expression matches as a whole."""
    if not pattern:
        raise GrammarError("the regular expression is empty")
    return GrammarSpec(kind="regex", source=pattern)


def choice(texts: Sequence[str]) -> GrammarSpec:
    """Return the form of one of some texts.

    Raises:
        GrammarError: There are none, an empty one, or too many.
    """
    if not 0 < len(texts) <= MAX_CHOICES:
        raise GrammarError(f"{len(texts)} choices, expected 1 to {MAX_CHOICES}")
    if not all(texts):
        raise GrammarError("a choice is an empty text")
    return GrammarSpec(kind="lark", source="start: " + alternatives(texts))


def only_tokens(token_ids: Collection[int]) -> GrammarSpec:
    """Return the form of answers that are made of some tokens alone, whatever text they come to."""
    numbers = ",".join(map(str, sorted(set(token_ids))))
    return GrammarSpec(kind="lark", source=f"start: allowed+\nallowed: <[{numbers}]>")


def context_free(source: str) -> GrammarSpec:
    """Return the form that a grammar describes: Lark's notation, or GBNF as llama.cpp has it.

    Raises:
        GrammarError: It is GBNF that cannot be read, or too long.
    """
    checked = GrammarSpec(kind="lark", source=source)
    if "::=" not in source:
        return checked
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    try:
        return GrammarSpec(kind="lark", source=any_to_lark(source))
    except (GbnfToLarkError, LookupError, ValueError, RecursionError) as error:
        raise GrammarError(f"the grammar cannot be read as GBNF: {error}"[:500]) from error


def quoted(text: str) -> str:
    """Return a text as a literal of Lark's notation."""
    return json.dumps(text, ensure_ascii=False)


def regex_literal(pattern: str) -> str:
    """Return a regular expression as a literal of Lark's notation, which ends with a slash."""
    ends = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return f"/{_SLASH_OR_ESCAPED.sub(lambda found: ends.get(found[0], found[0]), pattern)}/"


def alternatives(texts: Iterable[str]) -> str:
    """Return one of some texts in Lark's notation."""
    return " | ".join(dict.fromkeys(map(quoted, texts)))


def check_size(value: object) -> None:
    """Refuse a schema that is nested too deeply, or has too many values.

    Raises:
        GrammarError: It is or has.
    """
    count, depth, level = 0, 0, [value]
    while level:
        count += len(level)
        if depth > MAX_DEPTH or count > MAX_SCHEMA_VALUES:
            raise GrammarError(
                f"the schema is too large: expected at most {MAX_DEPTH} levels and "
                f"{MAX_SCHEMA_VALUES} values"
            )
        depth += 1
        level = [inner for outer in level for inner in _inner(outer)]


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _parsed(text: str) -> Any:
    if len(text) > MAX_SOURCE_BYTES:
        raise GrammarError(f"the schema has {len(text)} characters, more than {MAX_SOURCE_BYTES}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}") from error


def _text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema cannot be written as JSON: {error}") from error
