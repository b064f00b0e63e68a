"""One option: what it is called wherever it can be given, and records that are made of some.

The options themselves stand in ``zse.options`` and ``zse.settings``.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Value = TypeVar("Value")
Record = TypeVar("Record")

_LARGEST = 1.7976931348623157e308
"""No bound, but for infinity, which few options can take."""
WANTED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    tuple: "a list of texts",
}


@record
class Option:
    """One row of the table."""

    default: Any
    """Its value when nobody gives one; its type is the option's."""
    help: str
    """What it is, without a full stop."""
    key: str = ""
    """What it is called in ``zse.toml``, in flags and in errors, when not as its field."""
    env: str | None = None
    """Its variables, the strongest first; the prefix and the key when left out; empty for none,
    which is for an option that only Python takes."""
    prefix: str = "ZSE_"
    """``PREFIX`` of its record, where there is one."""
    unit: str = ""
    unset: str = ""
    """What 0, or an empty text, means."""
    least: float = 0
    most: float = _LARGEST
    choices: tuple[str, ...] = ()
    any_case: bool = False
    """Choices may be written in capitals."""
    also: tuple[str, ...] = ()
    """Other flags for it."""
    is_secret: bool = False
    """It is never shown."""
    is_internal: bool = False
    """It is not for people."""

    @property
    def kind(self) -> type:
        if isinstance(self.default, Path):
            return Path
        return str if self.default is None else type(self.default)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment's names for it, the strongest first."""
        return (self.prefix + self.key.upper(),) if self.env is None else tuple(self.env.split())

    @property
    def by_hand(self) -> bool:
        """Whether ``zse.toml`` and flags may hold it: what has a variable of our own.

        What other tools read too stays in the environment, so that no file sends keys elsewhere.
        """
        is_ours = any(name.startswith("ZSE_") for name in self.variables)
        return is_ours and not (self.is_secret or self.is_internal)

    @property
    def flags(self) -> tuple[str, ...]:
        """What a command line calls it, the usual name first."""
        return ("--" + self.key.replace("_", "-"), *self.also)

    @property
    def meaning(self) -> str:
        """What it is, its unit, what may be given and what nothing means: one sentence."""
        if not self.choices:
            return self._sentence()
        return self._sentence(f": {', '.join(self.choices[:-1])} or {self.choices[-1]}")

    def _sentence(self, choices: str = "") -> str:
        text = (f"{self.help}, in {self.unit}" if self.unit else self.help) + choices
        if self.kind is tuple:
            text += "; may be given several times, and with commas"
        if self.unset:
            text += f"; {'empty' if self.kind is str else '0'} means {self.unset}"
        return text + "."

    @property
    def help_text(self) -> str:
        """What a flag's help says: choices stand beside its name; variables and default here."""
        held = [*self.variables, *([f"else {self._usual}"] if self._usual else [])]
        return f"{self._sentence()}  [{', '.join(held)}]"

    @property
    def _usual(self) -> str:
        """The default in words; empty where ``unset`` tells of it, or it is nothing."""
        if self.kind is bool:
            return "on" if self.default else "off"
        if self.kind in (int, float) and (self.default or not self.unset):
            return str(self.default).removesuffix(".0")
        return str(self.default or "")

    @property
    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind not in (int, float):
            return WANTED[self.kind]
        ends = f"{self.least:g} or more" if self.most >= _LARGEST else ""
        return ends or f"{self.least:g} to {self.most:g}"

    def fits(self, value: Any) -> bool:
        """Whether a value of the right type is one of those that may be given."""
        if self.choices:
            return (value.lower() if self.any_case else value) in self.choices
        if self.kind not in (int, float):
            return True
        return bool(self.least <= value <= self.most)

    def check(self, value: Any, told_as: str = "") -> None:
        """Refuse what is out of range.

        Raises:
            UsageError: It is; ``told_as`` is what whoever gave the value calls the option.
        """
        if not self.fits(value):
            raise UsageError(f"{told_as or self.key} is {value!r}, expected {self.expected}")


_OWN: dict[type, dict[str, Option]] = {}


def described(default: Value, help: str, **facts: Any) -> Value:  # noqa: A002 - its usual name
    """Return a field of a record that is an option; ``facts`` are other fields of ``Option``."""
    row = Option(default=default, help=help, **facts)
    return field(default=default, repr=not row.is_secret, metadata={"option": row})


def own_options(of: type) -> dict[str, Option]:
    """Return the options that a record has itself, by the names of its fields."""
    if of not in _OWN:
        prefix = getattr(of, "PREFIX", "ZSE_")
        _OWN[of] = {
            entry.name: replace(row, key=row.key or entry.name, prefix=prefix)
            for entry in fields(of)
            if (row := entry.metadata.get("option"))
        }
    return _OWN[of]


def options_of(of: type) -> dict[str, Option]:
    """Return the options of a record and of the records in it, by their keys."""
    found = {}
    for entry in fields(of):
        if entry.name in own_options(of):
            row = own_options(of)[entry.name]
            found[row.key] = row
        elif hasattr(entry.default, "__record__"):
            found |= options_of(type(entry.default))
    return found


def with_values(one: Record, values: Mapping[str, object]) -> Record:
    """Return a record with other values, by key or field, in it or in the records in it."""
    changes: dict[str, object] = {}
    for name, row in own_options(type(one)).items():
        for asked in {row.key, name} & values.keys():
            changes[name] = values[asked]
    for entry in fields(one):  # type: ignore[arg-type]
        inner = getattr(one, entry.name)
        if hasattr(inner, "__record__"):
            changed = with_values(inner, values)
            if changed is not inner:
                changes[entry.name] = changed
    return replace(one, **changes) if changes else one  # type: ignore[type-var]


def with_flags(one: Record, flags: Mapping[str, object]) -> Record:
    """Return a record with what a command line gave; a flag that is None was not given.

    Raises:
        UsageError: A value is out of range.
    """
    rows = options_of(type(one))
    given = {
        key: several(value) if isinstance(value, list) else value
        for key, value in flags.items()
        if value is not None and value != []
    }
    for key, value in given.items():
        rows[key].check(value, key)
    return with_values(one, given)


def several(given: Iterable[object]) -> tuple[str, ...]:
    """Return the texts of an option that may be given several times, each with commas."""
    parts = [part.strip() for text in given for part in str(text).split(",")]
    return tuple(part for part in parts if part)


class Checked:
    """Records whose options are held to their bounds."""

    def __post_init__(self) -> None:
        for name, row in own_options(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                row.check(value, name)
