"""Checkpoints whose numbers came quantized: a module for each format.

A format says which tensors stand for one matrix; whoever converts sees a matrix by Hugging Face's
name and shape, [N, K], and reads rows of it: the codes of a scheme of ours where it has the same
grid, else float32. This module imports no torch, so that a model's size is known without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

METHODS = ("gptq", "awq", "fp8", "compressed-tensors", "bitsandbytes")
"""Of ``quantization_config``, as its ``quant_method`` says it."""


def unquantized_config(config_json: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a ``config.json`` as that of the model before a format that is known quantized it."""
    if quantization(config_json) is None:
        return config_json
    return {name: value for name, value in config_json.items() if name != "quantization_config"}


def quantization(config_json: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a checkpoint says of its quantization; None where no format here is meant."""
    found = config_json.get("quantization_config")
    return found if isinstance(found, dict) and found.get("quant_method") in METHODS else None
