"""Settings that only one target knows (``--set NAME=VALUE``): declared, typed, listed, checked."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.deploy.order import Order


Kind: TypeAlias = Literal["text", "list", "pairs", "flag", "number"]
"""What a setting's value is; a number is whole and not negative."""
_WRITTEN: dict[Kind, str] = {
    "text": "TEXT",
    "list": "A,B",
    "pairs": "A=B,C=D",
    "flag": "true|false",
    "number": "NUMBER",
}
_NUMBER = re.compile(r"\d{1,9}")


@record
class Setting:
    """One setting of a target, as the target's table says it."""

    name: str
    meaning: str
    """One line."""
    kind: Kind = "text"
    default: str = ""
    """As it would be written; empty when there is none."""
    is_needed: bool = False
    choices: Sequence[str] = ()
    form: str = ""
    """The only form of the target that knows it; empty for all."""

    @property
    def written(self) -> str:
        return f"{self.name}={'|'.join(self.choices) or _WRITTEN[self.kind]}"

    @property
    def told(self) -> str:
        without = "needed" if self.is_needed else f"default {self.default}" if self.default else ""
        return f"{self.meaning} [{without}]" if without else self.meaning

    def parse(self, text: str) -> Any:
        """Return the value that a text stands for: text, list, mapping, truth or number.

        Raises:
            UsageError: The text is none.
        """
        if self.choices and text not in self.choices:
            raise self._refusal(text, f"one of {', '.join(self.choices)}")
        if self.kind == "list":
            return text.split(",")
        if self.kind == "flag":
            if text not in ("true", "false"):
                raise self._refusal(text, "true or false")
            return text == "true"
        if self.kind == "number":
            if not _NUMBER.fullmatch(text):
                raise self._refusal(text, "a whole number")
            return int(text)
        return self._pairs(text) if self.kind == "pairs" else text

    def _pairs(self, text: str) -> dict[str, str]:
        pairs = [item.partition("=") for item in text.split(",")]
        if not all(name and equals for name, equals, _ in pairs):
            raise self._refusal(text, "name=value,name=value")
        return {name: value for name, _, value in pairs}

    def _refusal(self, text: str, expected: str) -> UsageError:
        return UsageError(f"--set {self.name}={text}: expected {expected}", hint=self.meaning)


def of_form(settings: Iterable[Setting], form: str) -> list[Setting]:
    return [setting for setting in settings if setting.form in ("", form)]


def take_settings(order: Order, settings: Iterable[Setting] = ()) -> dict[str, Any]:
    """Return the values of an order's settings, each of its kind, and defaults for the rest.

    Returns:
        Setting -> value; those that were not given and have no default are left out.

    Raises:
        UsageError: One is not known to the target or the form, is missing, or is malformed.
    """
    known = {setting.name: setting for setting in of_form(settings, order.form)}
    for name in sorted(order.extra.keys() - known.keys()):
        raise _unknown(name, list(known))
    for setting in known.values():
        if setting.is_needed and setting.name not in order.extra:
            raise UsageError(
                f"{order.form or 'this target'} needs {setting.name}: {setting.meaning}",
                hint=f"Give --set {setting.written}.",
            )
    texts = {name: order.extra.get(name, setting.default) for name, setting in known.items()}
    return {
        name: known[name].parse(text)
        for name, text in texts.items()
        if name in order.extra or known[name].default
    }


def _unknown(name: str, known: list[str]) -> UsageError:
    close = get_close_matches(name.replace("-", "_"), known, n=1) or get_close_matches(
        name.replace("_", "-"), known, n=1
    )
    if close:
        hint = f"Did you mean {close[0]}?"
    else:
        hint = f"It knows {', '.join(known)}." if known else "It has none."
    return UsageError(f"this target has no setting {name}", hint=hint)
