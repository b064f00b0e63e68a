"""Calls of tools in answers: one file for each form that models are trained to write them in."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.text.tools.format import CallFormat


def call_format(name: str) -> CallFormat:
    """Return a form by the name of its file, imported when it is needed."""
    found: CallFormat = importlib.import_module(f"zse.text.tools.{name}").FORMAT
    return found
