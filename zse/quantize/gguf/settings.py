"""The settings of one architecture in a GGUF file, read with their kinds checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.quantize.gguf.header import GgufHeader


_MOST_LAYERS = 65536
"""No model has more: a setting is no reason to make a longer list."""


class OwnSettings:
    """An architecture's own settings.

    Each method raises CheckpointError where a setting is missing or of another kind.
    """

    def __init__(
        self, header: GgufHeader, prefix: str, where: str, rotary_factors: Sequence[float] | None
    ) -> None:
        self.header = header
        self.where = where
        self.rotary_factors = rotary_factors
        self._settings = header.settings
        self._prefix = prefix

    @property
    def tokenizer(self) -> object:
        """The kind of tokenizer; None where the file has none."""
        return self._settings.get("tokenizer.ggml.model")

    def has(self, name: str) -> bool:
        return f"{self._prefix}.{name}" in self._settings

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        # Some converters give a number for each layer; equal ones are one.
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]
        if type(value) is not int:
            raise self._wrong(name, value, "a whole number")
        return value

    def integers(self, name: str) -> list[int]:
        """Return one a layer: those that are told, or the one for all."""
        value, count = self._value(name, None), self.integer("block_count")
        values = value if isinstance(value, list) else [value] * min(max(count, 0), _MOST_LAYERS)
        if len(values) != count or not all(type(one) is int for one in values):
            raise self._wrong(name, value, "a whole number, or one for each layer")
        return list(values)

    def first(self, name: str, default: int | None = None) -> int:
        """Return the first layer's where each has one."""
        return self.integers(name)[0] if self.has(name) else self.integer(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        if type(value) not in (int, float):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._value(name, default)
        if type(value) is not bool:
            raise self._wrong(name, value, "true or false")
        return value

    def flags(self, name: str) -> list[bool]:
        """Return one a layer; none where nothing is told."""
        values = self._settings.get(f"{self._prefix}.{name}", [])
        is_list = isinstance(values, list) and all(type(value) is bool for value in values)
        if not is_list or (values and len(values) != self.integer("block_count")):
            raise self._wrong(name, values, "true or false for each layer")
        return list(values)

    def text(self, name: str, default: str) -> str:
        return str(self._value(name, default))

    def _value(self, name: str, default: Any) -> Any:
        value = self._settings.get(f"{self._prefix}.{name}", default)
        if value is None:
            raise CheckpointError(
                f"{self.where} does not say {self._prefix}.{name}",
                hint="Download the file again, or convert the checkpoint that it was made from.",
            )
        return value

    def _wrong(self, name: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.where}: {self._prefix}.{name} is {str(value)[:80]!r}; expected {expected}"
        )
