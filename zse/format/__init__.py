"""The .zse file: what it is (``SPEC.md``), how it is written and read.

Nothing here imports torch until a tensor is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zse.errors import needing
from zse.format.reader import ZSEReader
from zse.format.spec import Scheme, TensorEntry, TensorInfo, ZSEHeader

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

# What a server that reads a file does without. Two of these live higher up: by name, so that this
# package stays at the bottom.
_LATE = {
    "ZSEWriter": "zse.format.writer",
    "convert_model": "zse.quantize.convert",
    "load_zse_model": "zse.quantize.huggingface",
}
# Those that stand on torch, and the extra that brings what they need.
_EXTRAS = {"convert_model": "convert", "load_zse_model": "hf"}


def __getattr__(name: str) -> Any:
    """Import a late entry point when it is first asked for (PEP 562)."""
    if name not in _LATE:
        raise AttributeError(f"module 'zse.format' has no attribute {name!r}")
    extra = _EXTRAS.get(name)
    if extra is None:
        return getattr(import_module(_LATE[name]), name)
    with needing(extra, name):
        return getattr(import_module(_LATE[name]), name)
