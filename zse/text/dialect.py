"""How a model writes what is not text: calls and reasoning. Decided when it is opened.

The template says what the model was trained to write, since it prints calls and reasoning of
earlier turns in the same form; the vocabulary's control tokens tell the rest. Options overrule
both. The scripts that read the forms are imported for the first answer that needs them.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from zse.records import record
from zse.text.reasoning.controls import ThinkingControls, controls_of
from zse.text.tools import call_format
from zse.text.tools.history import CallHistory, call_history_of
from zse.text.user_text import ControlTexts

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from zse.text.facts import AddedToken
    from zse.text.pieces import AnswerReader
    from zse.text.reasoning.formats import ReasoningFormat
    from zse.text.scanner import Reading, Scanner
    from zse.text.tools.format import CallFormat, Offered

AUTO, NONE = "auto", "none"
_CALL_SIGNS = (
    ("harmony", ("<|channel|>",)),
    ("deepseek", ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>")),
    ("kimi", ("<|tool_call_begin|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("qwen3_coder", ("<function=",)),
    ("glm", ("<arg_key>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>", "<|tool_call_start|>", "<function_calls>", "[func_name1(")),
    ("llama3", ("<|python_tag|>",)),
)
"""Texts of which one in a template, or among the control tokens, shows the form; first wins."""
_REASONING_SIGNS = (
    ("mistral", ("[THINK]",)),
    ("seed", ("<seed:think>",)),
    ("think", ("</think>",)),
    ("granite", ("my thought process:",)),
)


@record
class AnswerReading:
    """How the answers to one prompt are read."""

    make_reader: Callable[[], AnswerReader]
    """Makes what takes one answer apart."""
    shown_ids: tuple[int, ...] = ()
    """Control tokens whose text stays in the answers, for the reader."""
    call_id_characters: int = 0
    """How long ids of calls are, where the model's template insists."""


@record
class AnswerShape:
    """What stands around the text of an answer."""

    controls: Mapping[str, int] = field(default_factory=dict)
    """Ids of the model's control tokens by their texts."""
    calls: CallFormat | None = None
    """None where there are no tools."""
    reasoning: ReasoningFormat | None = None
    """None where the model does not reason in this answer."""
    is_open: bool = False
    """Its reasoning was opened by the prompt."""

    def reading(self, offered: Offered) -> AnswerReading | None:
        """Return how answers are read; None where they can only be text."""
        if self.calls is None and self.reasoning is None:
            return None
        from zse.text.scanner import ScriptReader

        def script(scanner: Scanner) -> Reading[None]:
            if self.reasoning is not None:
                yield from self.reasoning.read(scanner, is_open=self.is_open)
            if self.calls is not None:
                yield from self.calls.read(scanner, offered)
            else:
                yield from scanner.until((), scanner.say)

        forms = [form for form in (self.calls, self.reasoning) if form is not None]
        texts = [text for form in forms for text in form.texts if text in self.controls]
        hidden = self.calls.markers if self.calls else ()
        return AnswerReading(
            make_reader=lambda: ScriptReader(script, hidden),
            shown_ids=tuple(self.controls[text] for text in texts),
            call_id_characters=self.calls.call_id_characters if self.calls else 0,
        )


@record
class Dialect:
    """The forms that a model writes."""

    calls: str = "hermes"
    """One of ``zse.server_options.TOOL_PARSERS``, but auto."""
    reasoning: str = NONE
    """One of ``zse.server_options.REASONING_PARSERS``, but auto; none where the model does not
    reason, or its form of calls has a place for it."""
    controls: Mapping[str, int] = field(default_factory=dict)
    """Ids of the control tokens by their texts."""
    thinking: ThinkingControls = ThinkingControls()
    """How a request turns reasoning on and off."""
    call_history: CallHistory = CallHistory()
    """How its template wants earlier calls."""
    control_texts: ControlTexts = ControlTexts()
    """What users cannot write."""

    @property
    def keeps_schemas(self) -> bool:
        """Whether arguments can be held to their schemas in answers that need not call."""
        grammar = call_format(self.calls).grammar if self.calls != NONE else None
        return grammar is not None and grammar.shows_text

    def shape(self, prompt: str, *, has_tools: bool) -> AnswerShape:
        """Return what stands around the text of an answer.

        Args:
            prompt: As it was rendered: its end shows whether reasoning was opened or closed.
            has_tools: Whether tools are offered.
        """
        # In harmony, text has a header too.
        has_calls = self.calls == "harmony" or (has_tools and self.calls != NONE)
        reasoning = self._reasoning_after(prompt)
        return AnswerShape(
            controls=self.controls,
            calls=call_format(self.calls) if has_calls else None,
            reasoning=reasoning,
            is_open=reasoning is not None and reasoning.is_opened_by(prompt),
        )

    def _reasoning_after(self, prompt: str) -> ReasoningFormat | None:
        if self.reasoning == NONE:
            return None
        found = _reasoning_format(self.reasoning)
        return None if found.is_closed_by(prompt) else found


def detect_dialect(
    template: str, added: Iterable[AddedToken], *, calls: str = AUTO, reasoning: str = AUTO
) -> Dialect:
    """Return the forms that a model writes.

    Args:
        template: Source of its chat template; empty where it has none.
        added: The added tokens of its vocabulary.
        calls: A form that is known already, none, or auto.
        reasoning: Likewise.
    """
    return _detected(template, tuple(added), calls, reasoning)


@lru_cache(maxsize=16)  # fine-tunes of one base that change places write alike
def _detected(template: str, added: tuple[AddedToken, ...], calls: str, reasoning: str) -> Dialect:
    controls = {token.text: token.token_id for token in added if token.special}
    if calls == AUTO:
        calls = _found(_CALL_SIGNS, template) or _found(_CALL_SIGNS, controls) or "llama3"
    if reasoning == AUTO:
        reasoning = "" if calls == "harmony" else _found(_REASONING_SIGNS, template)
    own_texts = _reasoning_format(reasoning).texts if reasoning not in ("", NONE) else ()
    return Dialect(
        calls=calls,
        reasoning=reasoning or NONE,
        controls=controls,
        thinking=controls_of(template),
        call_history=call_history_of(template),
        control_texts=ControlTexts.of_model(template, added, own_texts),
    )


def _reasoning_format(name: str) -> ReasoningFormat:
    from zse.text.reasoning.formats import FORMATS

    return FORMATS[name]


def _found(signs: Iterable[tuple[str, tuple[str, ...]]], place: Container[str]) -> str:
    return next((name for name, texts in signs if any(text in place for text in texts)), "")
