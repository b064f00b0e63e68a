"""Values that a model wrote, as JSON or as Python literals: read as data, never run, in bounds."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any, NoReturn

MAX_CHARACTERS = 65_536
"""Of a list or a dict: its syntax tree takes a hundred times its text."""


def json_value(text: str) -> Any:
    """Return the value of a JSON text. Python's own reader takes ``NaN`` and ``Infinity``, too.

    Raises:
        ValueError: It is none, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError(f"no JSON: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def literal_json(text: str) -> str:
    """Return the JSON of a Python literal (``None``, ``'a'``, ``{'b': (1, 2)}``).

    Raises:
        ValueError: It is none, is too large, or holds what JSON cannot say.
    """
    is_text = text[:1] in ("'", '"')
    if len(text) > MAX_CHARACTERS and not is_text:
        raise ValueError(f"a literal of {len(text)} characters is not read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"no literal that JSON can say: {error}") from error
