"""Which format the weights of a checkpoint have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.quantize.formats import quantization
from zse.quantize.formats.awq import AWQ
from zse.quantize.formats.bitsandbytes import BitsAndBytes
from zse.quantize.formats.compressed import CompressedTensors
from zse.quantize.formats.fp8 import FP8
from zse.quantize.formats.gptq import GPTQ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.quantize.formats.matrix import WeightFormat

_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], WeightFormat]] = {
    "gptq": GPTQ,
    "awq": AWQ,
    "fp8": FP8,
    "compressed-tensors": CompressedTensors,
    "bitsandbytes": BitsAndBytes,
}


def format_of(config_json: Mapping[str, Any]) -> WeightFormat | None:
    """Return the format that a ``config.json`` tells of; None where there is none, or its own.

    Raises:
        UnsupportedModelError: Bits, groups or another option of the format are not supported.
    """
    config = quantization(config_json)
    if config is None:
        return None
    return _FORMATS[config["quant_method"]](config)
