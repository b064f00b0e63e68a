"""The regular expressions of a start, compiled: code of the matching engine from the start's pack.

Python takes a pattern apart and compiles it each time that a process first asks for it, in Python:
a tenth to half of a millisecond each, and a start asks for a hundred and fifty, most of them in
modules that it does not own. What comes out is a list of numbers, the same for one version of
Python; the engine, which is C, checks it when it takes it.
"""

from __future__ import annotations

import _sre  # type: ignore[import-not-found]
import _thread
import re

TYPE_CHECKING = False  # without importing ``typing``
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeAlias

    Key: TypeAlias = tuple[str | bytes, int]
    """A pattern and its flags, as they are asked for."""
    Made: TypeAlias = tuple[int, list[int], int, dict[str, int], tuple[str | None, ...]]
    """What the engine is given beside the pattern: flags, code, groups and their names."""

_compiler: Any = getattr(re, "_compiler", None)
_CAN_BE_MADE = hasattr(_compiler, "compile") and hasattr(_compiler, "_sre")
"""Whether this Python is built as those are that this was written for."""
_LEFT_OUT = re.LOCALE | re.DEBUG
"""Flags by which the same pattern is not the same code, or more than code is asked for."""


class Patterns:
    """Stands in for the compiler of patterns while it is in use."""

    def __init__(self, known: Mapping[Key, Made]) -> None:
        self.known = known
        self._usual: Callable[..., re.Pattern[Any]] | None = None

    def use(self) -> None:
        if _CAN_BE_MADE and self.known:
            self._usual = _compiler.compile
            _compiler.compile = self.compile

    def leave(self) -> None:
        """Let patterns be compiled as ever; twice does nothing."""
        if self._usual is not None:
            _compiler.compile, self._usual = self._usual, None

    def compile(self, pattern: Any, flags: int = 0) -> re.Pattern[Any]:
        """See ``re._compiler.compile``."""
        usual, made = self._usual or _compiler.compile, None
        if type(pattern) is str or type(pattern) is bytes:
            made = self.known.get((pattern, flags))
        found: re.Pattern[Any] = (
            usual(pattern, flags) if made is None else _sre.compile(pattern, *made)
        )
        return found


def asked_for() -> set[Key]:
    """Return what patterns this process has asked for, as far as Python remembers them."""
    cache: Mapping[Any, object] = getattr(re, "_cache", {})
    return {
        (pattern, flags)
        for _, pattern, flags in tuple(cache)
        if type(pattern) in (str, bytes) and not flags & _LEFT_OUT
    }


class _Noting:
    """The engine, as the compiler knows it; it notes what this thread gives it."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self._thread = _thread.get_ident()

    def compile(self, pattern: Any, *made: Any) -> Any:
        if _thread.get_ident() == self._thread:
            self.given = made
        return _sre.compile(pattern, *made)

    def __getattr__(self, name: str) -> Any:
        return getattr(_sre, name)


def made_of(keys: Iterable[Key]) -> dict[Key, Made]:
    """Compile patterns; return what the engine is given for each, in a fixed order.

    No ``Patterns`` is in use.
    """
    found: dict[Key, Made] = {}
    if not _CAN_BE_MADE:
        return found
    noting, engine = _Noting(), _compiler._sre
    for key in sorted(keys, key=repr):
        _compiler._sre = noting
        try:
            _compiler.compile(*key)
        except (re.error, RecursionError, OverflowError):
            continue
        finally:
            _compiler._sre = engine
        flags, code, groups, names, by_number = noting.given
        found[key] = (int(flags), list(map(int, code)), groups, dict(names), tuple(by_number))
    return found
