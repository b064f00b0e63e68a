"""Chat templates: messages to a prompt, in a sandbox with bounds on time and memory.

The template comes with the model, so it is not trusted: it sees plain values only, has no access
to Python objects, and what it runs, stores and prints is limited in proportion to its input.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zse.errors import TemplateError
from zse.text.facts import parse_object
from zse.text.template_guard import CHARGE, CHECK, JOIN, REPLACE, weave
from zse.text.tokenizer import special_token_text

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile

_FUEL_PER_KILOBYTE = 200_000
_FUEL_PER_INPUT_VALUE = 2_000
_STORED_CHARACTERS = 65_536
_OUTPUT_CHARACTERS = 1_048_576
_MAX_DEPTH = 64
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "tokenize"})


class ChatTemplate:
    """A compiled chat template. Any thread may use it; they take turns.

    Args:
        bos_token: Text of the token that begins a text, for templates that print it.
        eos_token: Text of the token that ends one.

    Raises:
        TemplateError: The source does not compile, or uses a construct that cannot be bounded.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        import minijinja

        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._error = minijinja.TemplateError
        self._budget = _Budget()
        self._turn = threading.Lock()  # the budget and the fuel are of one rendering
        environment = minijinja.Environment(
            pycompat=True,
            debug=False,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda _name: False,
        )
        environment.add_filter("tojson", self._budget.to_json)
        environment.add_filter(REPLACE, self._budget.replace)
        environment.add_filter(JOIN, self._budget.join)
        environment.add_global("raise_exception", _raise_exception)
        environment.add_global("strftime_now", _strftime_now)
        environment.add_global(CHECK, self._budget.check)
        environment.add_global(CHARGE, self._budget.charge)
        environment.finalizer = self._budget.emit
        try:
            environment.add_template("chat", weave(source))
        except minijinja.TemplateError as error:
            raise TemplateError(
                f"the chat template does not compile: {_first_line(error)}"
            ) from error
        self._environment = environment

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render messages to a prompt.

        Args:
            messages: Role, content and what else the template reads, as plain JSON values.
            tools: OpenAI function definitions; None when there are none.
            add_generation_prompt: End with the beginning of the assistant's answer.
            kwargs: More variables, for example ``enable_thinking``.

        Raises:
            TemplateError: The template refused the messages, failed, or went over its bounds.
        """
        taken = sorted(
            name for name in kwargs if name in _RESERVED or name.startswith("_") or name == "self"
        )
        if taken:
            raise TemplateError(f"the template variable '{taken[0]}' cannot be set by a request")
        values = {"messages": messages, "tools": tools or None, "documents": None, **kwargs}
        characters, count = _measure(values)
        fuel = _FUEL_PER_KILOBYTE * (1 + len(self.source) // 1024) + _FUEL_PER_INPUT_VALUE * count
        context = {**self._tokens, **values, "add_generation_prompt": add_generation_prompt}
        with self._turn:
            self._budget.reset(characters)
            self._environment.fuel = fuel
            try:
                return str(self._environment.render_template("chat", **context))
            except (self._error, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise TemplateError(f"the chat template failed: {_first_line(error)}") from error


class _Budget:
    """What one rendering may still store and print, in characters."""

    def __init__(self) -> None:
        self._stored = self._left = 0

    def reset(self, input_characters: int) -> None:
        self._stored = _STORED_CHARACTERS + 4 * input_characters
        self._left = _OUTPUT_CHARACTERS + 8 * input_characters

    def check(self, *values: Any) -> str:
        """Refuse a stored value that is larger than any template needs."""
        characters, count = _measure(values)
        if characters + count > self._stored:
            raise TemplateError(
                f"the chat template stores a value of over {self._stored} characters"
            )
        return ""

    def charge(self, characters: int) -> str:
        """Take characters from what may still be printed."""
        self._left -= characters
        if self._left < 0:
            raise TemplateError("the chat template prints too much text")
        return ""

    def emit(self, value: Any) -> Any:
        """Called for every printed value; the engine's own formatting follows."""
        self.charge(_measure((value,))[0])
        return NotImplemented

    def to_json(
        self,
        value: Any,
        indent: int | None = None,
        *,
        ensure_ascii: bool = False,
        separators: Sequence[str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as transformers' templates expect it: no HTML escapes, keys in their own order."""
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=None if indent is None else min(indent, 16),
            separators=(separators[0], separators[1]) if separators else None,
            sort_keys=sort_keys,
        )
        self.check(text)
        return text

    def replace(self, value: Any, old: str, new: str, count: int = -1) -> str:
        """``str.replace`` that measures its result before it makes it."""
        text = str(value)
        found = len(text) + 1 if old == "" else text.count(old)
        times = found if count < 0 else min(found, count)
        self._refuse_larger(len(text) + times * max(0, len(new) - len(old)))
        return text.replace(old, new, count)

    def join(self, separator: str, values: Sequence[Any]) -> str:
        """``str.join`` that measures its result before it makes it."""
        texts = [str(value) for value in values]
        self._refuse_larger(sum(map(len, texts)) + len(separator) * len(texts))
        return separator.join(texts)

    def _refuse_larger(self, characters: int) -> None:
        if characters > self._stored:
            raise TemplateError("the chat template stores a value that is too large")


def load_chat_template(reader: ModelFile) -> ChatTemplate:
    """Load the chat template that a .zse file holds.

    Raises:
        TemplateError: The file has none, or it cannot be compiled.
    """
    return chat_template_of(
        lambda name: bytes(reader.section(name)) if reader.has_section(name) else None
    )


def chat_template_of(get_section: Callable[[str], bytes | None]) -> ChatTemplate:
    """Load the chat template of a model whose sections are returned by name, or None.

    Raises:
        TemplateError: There is none, or it cannot be compiled.
    """
    described, own = get_section("tokenizer_config.json"), get_section("chat_template.jinja")
    config: dict[str, Any] = {}
    if described is not None:
        config = parse_object(described, "tokenizer_config")
    source = config.get("chat_template")
    if own is not None:
        source = own.decode("utf-8", "replace")
    if isinstance(source, list):
        named = {
            item.get("name"): item.get("template") for item in source if isinstance(item, dict)
        }
        source = named.get("default")
    if not isinstance(source, str) or not source:
        raise TemplateError(
            "the model has no chat template",
            hint="It is a base model: use plain completions. For an instruct model, convert its "
            "checkpoint again with --chat-template FILE.",
        )
    return ChatTemplate(
        source,
        bos_token=special_token_text(config.get("bos_token")),
        eos_token=special_token_text(config.get("eos_token")),
    )


def _measure(value: Any, depth: int = 0) -> tuple[int, int]:
    """Return how many characters and how many values there are in nested plain values."""
    if isinstance(value, str):
        return len(value), 1
    if depth > _MAX_DEPTH:
        raise TemplateError(f"values are nested deeper than {_MAX_DEPTH} levels")
    characters, count = 0, 1
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        for part in value:
            more_characters, more = _measure(part, depth + 1)
            characters += more_characters
            count += more
    return characters, count


def _raise_exception(message: str) -> str:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    if len(form) > 256:
        raise TemplateError("the chat template asks for a date of over 256 characters")
    return datetime.datetime.now().astimezone().strftime(form)


def _first_line(error: Exception) -> str:
    """Without the source lines that the engine appends; the template may hold private text."""
    return str(error).partition("\n")[0]
