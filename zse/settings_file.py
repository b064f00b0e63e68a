"""``zse.toml``: what the environment would say, in a file. Imported only where there is one.

Keys are those of the table in ``zse.options``. Secrets, and what other tools read too, stay in the
environment: a file that lies in some folder cannot send keys elsewhere.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import BadSettingError
from zse.option import WANTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.option import Option


def read_settings_file(path: Path, rows: Mapping[str, Option]) -> dict[str, object]:
    """Return the values of a file, by key.

    Args:
        path: The file. Paths in it that are relative are so to its folder.
        rows: All options, by key.

    Raises:
        BadSettingError: It cannot be read, is not TOML, or a key or a value means nothing.
    """
    try:
        with path.open("rb") as file:
            written = tomllib.load(file)
    except OSError as error:
        raise BadSettingError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadSettingError(f"{path} is not TOML: {error}") from error
    return {key: _checked(path, key, value, rows) for key, value in written.items()}


def _checked(path: Path, key: str, value: object, rows: Mapping[str, Option]) -> object:
    row = rows.get(key) or next((r for r in rows.values() if key.upper() in r.variables), None)
    if row is not None and not row.by_hand:
        raise BadSettingError(
            f"{path}: {key} may not stand in a file", hint=f"Set {row.variables[0]} instead."
        )
    if row is None or row.key != key:
        known = [name for name, each in rows.items() if each.by_hand]
        near = difflib.get_close_matches(row.key if row else key, known, 1)
        raise BadSettingError(
            f"{path}: {key} is no setting",
            hint=f"Did you mean {near[0]}?" if near else f"Settings are {', '.join(known)}.",
        )
    kind = str if row.kind is Path else row.kind
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and type(value) is list and all(type(one) is str for one in value):
        value = tuple(value)
    if type(value) is not kind:
        raise BadSettingError(
            f"{path}: {key} is {value!r}, expected {WANTED[row.kind]}",
            hint=f"For example: {key} = {_example(row)}",
        )
    if not row.fits(value):
        raise BadSettingError(f"{path}: {key} is {value!r}, expected {row.expected}")
    is_relative = row.kind is Path and not str(value).startswith("~")
    return path.parent / str(value) if is_relative else value


def _example(row: Option) -> str:
    if row.kind in (int, float, bool):
        return str(row.default).lower()
    if row.kind is tuple:
        return '["one", "another"]'
    return f'"{row.default}"'
