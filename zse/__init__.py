"""zse: an LLM endpoint that wakes in under a second, from one file.

The names here are imported on first use, so that ``import zse`` costs nothing on the cold path.
"""

from __future__ import annotations

TYPE_CHECKING = False  # without importing ``typing``, which a start does later
if TYPE_CHECKING:
    from typing import Any

    from zse.engine.answers import Completion, RequestOutput
    from zse.engine.llm import LLM
    from zse.engine.orchestrator import IntelligenceOrchestrator
    from zse.engine.output import Delta, TokenLogprob
    from zse.engine.request import SamplingParams
    from zse.errors import ZSEError
    from zse.format.reader import ZSEReader
    from zse.quantize.convert import convert_model
    from zse.quantize.export.model import ExportReport, export_model
    from zse.quantize.huggingface.in_memory import (
        QuantizedLinear,
        convert_model_to_bnb,
        get_model_memory,
        quantize_model,
    )
    from zse.quantize.huggingface.load import load_zse_model
    from zse.quantize.report import ConversionReport

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Completion",
    "ConversionReport",
    "Delta",
    "ExportReport",
    "IntelligenceOrchestrator",
    "QuantizedLinear",
    "RequestOutput",
    "SamplingParams",
    "TokenLogprob",
    "ZSEError",
    "ZSEReader",
    "__version__",
    "convert_model",
    "convert_model_to_bnb",
    "export_model",
    "get_model_memory",
    "load_zse_model",
    "quantize_model",
]

_LAZY = {
    "LLM": "zse.engine.llm",
    "SamplingParams": "zse.engine.request",
    "RequestOutput": "zse.engine.answers",
    "Completion": "zse.engine.answers",
    "Delta": "zse.engine.output",
    "TokenLogprob": "zse.engine.output",
    "IntelligenceOrchestrator": "zse.engine.orchestrator",
    "convert_model": "zse.quantize.convert",
    "ConversionReport": "zse.quantize.report",
    "export_model": "zse.quantize.export.model",
    "ExportReport": "zse.quantize.export.model",
    "ZSEReader": "zse.quantize.locate",
    "load_zse_model": "zse.quantize.huggingface.load",
    "QuantizedLinear": "zse.quantize.huggingface.in_memory",
    "quantize_model": "zse.quantize.huggingface.in_memory",
    "convert_model_to_bnb": "zse.quantize.huggingface.in_memory",
    "get_model_memory": "zse.quantize.huggingface.in_memory",
    "ZSEError": "zse.errors",
}
"""Public name -> its module, in the order of the reference page."""
_EXTRAS = {
    "convert_model": "convert",
    "export_model": "convert",
    "ExportReport": "convert",
    "load_zse_model": "hf",
    "QuantizedLinear": "hf",
    "quantize_model": "hf",
    "convert_model_to_bnb": "hf",
    "get_model_memory": "hf",
}
"""What stands on torch as soon as it is imported, and the extra that brings what it needs."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module 'zse' has no attribute {name!r}")
    from contextlib import nullcontext
    from importlib import import_module

    from zse.errors import needing

    with needing(_EXTRAS[name], name) if name in _EXTRAS else nullcontext():
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Name what can be asked for here, imported yet or not.

    ``help`` and completion ask for all of it, so what stands on torch is named where torch is.
    """
    from importlib.util import find_spec

    absent = () if find_spec("torch") else _EXTRAS.keys()
    own = {name for name in globals() if name.startswith("__")}
    return sorted({*__all__, *own}.difference(absent))
