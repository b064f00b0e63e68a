"""zse: an LLM endpoint that wakes in under a second, from one file.

The names here are imported on first use, so that ``import zse`` costs nothing on the cold path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

_LAZY = {"LLM": "zse.engine.llm", "SamplingParams": "zse.engine.request"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'zse' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
