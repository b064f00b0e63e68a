"""How a model writes what is not text: calls and reasoning. Decided when it is opened.

The template says what the model was trained to write, since it prints calls and reasoning of
earlier turns in the same form; the vocabulary's control tokens tell the rest. Options overrule
both. The scripts that read the forms are imported for the first answer that needs them.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from zse.records import record
from zse.text.reasoning.controls import ThinkingControls, controls_of
from zse.text.tools import call_format

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
    ("mistral", ("[TOOL_CALLS]",)),
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
class Dialect:
    """The forms that a model writes."""

    calls: str = "hermes"
    """One of ``zse.options.TOOL_PARSERS``, but auto."""
    reasoning: str = NONE
    """One of ``zse.options.REASONING_PARSERS``, but auto; none where the model does not reason, or
    its form of calls has a place for it."""
    controls: Mapping[str, int] = field(default_factory=dict)
    """Ids of the control tokens by their texts."""
    thinking: ThinkingControls = ThinkingControls()
    """How a request turns reasoning on and off."""

    def reading(self, prompt: str, offered: Offered) -> AnswerReading | None:
        """Return how answers are read; None where they can only be text.

        Args:
            prompt: As it was rendered: its end shows whether reasoning was opened or closed.
            offered: What may be called.
        """
        calls = self._call_format(offered)
        reasoning = self._reasoning_after(prompt)
        if calls is None and reasoning is None:
            return None
        is_open = reasoning is not None and reasoning.is_opened_by(prompt)

        def script(scanner: Scanner) -> Reading[None]:
            if reasoning is not None:
                yield from reasoning.read(scanner, is_open=is_open)
            if calls is not None:
                yield from calls.read(scanner, offered)
            else:
                yield from scanner.until((), scanner.say)

        from zse.text.scanner import ScriptReader

        texts = (*(calls.texts if calls else ()), *(reasoning.texts if reasoning else ()))
        return AnswerReading(
            make_reader=lambda: ScriptReader(script, hidden=calls.markers if calls else ()),
            shown_ids=tuple(self.controls[text] for text in texts if text in self.controls),
            call_id_characters=calls.call_id_characters if calls else 0,
        )

    def _call_format(self, offered: Offered) -> CallFormat | None:
        # In harmony, text has a header too.
        is_read = self.calls == "harmony" or (offered and self.calls != NONE)
        return call_format(self.calls) if is_read else None

    def _reasoning_after(self, prompt: str) -> ReasoningFormat | None:
        if self.reasoning == NONE:
            return None
        from zse.text.reasoning.formats import FORMATS

        found = FORMATS[self.reasoning]
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
    controls = {token.text: token.token_id for token in added if token.special}
    if calls == AUTO:
        calls = _found(_CALL_SIGNS, template) or _found(_CALL_SIGNS, controls) or "llama3"
    if reasoning == AUTO:
        reasoning = "" if calls == "harmony" else _found(_REASONING_SIGNS, template)
    return Dialect(
        calls=calls,
        reasoning=reasoning or NONE,
        controls=controls,
        thinking=controls_of(template),
    )


def _found(signs: Iterable[tuple[str, tuple[str, ...]]], place: Container[str]) -> str:
    return next((name for name, texts in signs if any(text in place for text in texts)), "")
