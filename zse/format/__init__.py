"""The .zse file: what it is (``SPEC.md``), how it is written and read.

Nothing here imports torch until a tensor is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zse.format.reader import ZSEReader
from zse.format.schemes import Scheme
from zse.format.spec import TensorEntry, TensorInfo, ZSEHeader

if TYPE_CHECKING:
    from zse.format.writer import ZSEWriter

ZSEReaderV2 = ZSEReader

__all__ = [
    "Scheme",
    "TensorEntry",
    "TensorInfo",
    "ZSEHeader",
    "ZSEReader",
    "ZSEReaderV2",
    "ZSEWriter",
    "convert_model",
    "load_zse_model",
]

_FROM_ABOVE = ("convert_model", "load_zse_model")
"""What ``zse`` itself offers: by name, so that this package stays at the bottom."""


def __getattr__(name: str) -> Any:
    """Import what a server that reads a file does without when it is first asked for (PEP 562)."""
    if name in _FROM_ABOVE:
        return getattr(import_module("zse"), name)
    if name != "ZSEWriter":
        raise AttributeError(f"module 'zse.format' has no attribute {name!r}")
    return import_module("zse.format.writer").ZSEWriter
