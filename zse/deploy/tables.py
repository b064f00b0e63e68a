"""Tables of this package: what platforms rent, and what targets know, in TOML."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


@cache
def read_table(name: str) -> dict[str, Any]:
    """Return a table by its path without the suffix: ``data/vast``, ``targets/compose``."""
    import tomllib  # noqa: PLC0415 - the help of most commands reads no table

    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def target_table(name: str, form: str = "") -> dict[str, Any]:
    """Return what a target's table says; what it says of the form goes first."""
    table = read_table(f"targets/{name}")
    return table | {
        key: table.get(key, {}) | said if isinstance(said, dict) else said
        for key, said in table.get("forms", {}).get(form, {}).items()
    }
