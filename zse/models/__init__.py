"""Models: what they are, as data, and the one program that runs them on a backend.

``load_runner`` is imported on first use, so that reading a configuration costs no backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zse.models.runner import ModelRunner, load_runner

__all__ = ["ModelRunner", "load_runner"]

_LAZY = {"ModelRunner": "zse.models.runner", "load_runner": "zse.models.runner"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'zse.models' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
