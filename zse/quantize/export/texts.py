"""What travels with the weights: config.json, generation settings, tokenizer and chat template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.errors import FormatError
from zse.models.pooling import POOLING_SECTION
from zse.quantize.text_files import TEMPLATE, TOKENIZER_FILES
from zse.quantize.weight_files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.format.reader import ZSEReader
    from zse.format.schemes import Scheme

CONFIG = "config.json"
NAMES = (CONFIG, "generation_config.json", *TOKENIZER_FILES, TEMPLATE, POOLING_SECTION)
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_OF_TEXT = "text_config"


def texts_of(
    reader: ZSEReader, dtype: Scheme, quantization: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """Return the texts of a file, by their names in a folder.

    Args:
        dtype: Of the weights.
        quantization: ``quantization_config`` of what is written; None: nothing is quantized.

    Raises:
        FormatError: The file has no config.json.
    """
    held = [name for name in dict.fromkeys(NAMES) if reader.has_section(name)]
    texts = {name: bytes(reader.section(name)) for name in held}
    if CONFIG not in texts:
        raise FormatError(f"the file has no section {CONFIG}")
    texts[CONFIG] = _config(texts[CONFIG], _DTYPES[dtype.value], quantization)
    return texts


def _config(raw: bytes, dtype: str, quantization: Mapping[str, Any] | None) -> bytes:
    """Return a config.json that says what the weights are; as it is where it does."""
    before = parse_json(raw, CONFIG)
    after = {name: value for name, value in before.items() if name != "quantization_config"}
    if quantization is not None:
        after["quantization_config"] = dict(quantization)
    text = after.get(_OF_TEXT)
    whole = [after] if not isinstance(text, dict) else [after, text]
    parts = [dict(part) for part in whole]
    said = [name for part in parts for name in ("dtype", "torch_dtype") if name in part]
    for part in parts:
        for name in ("dtype", "torch_dtype"):
            if part.get(name) is not None:
                part[name] = dtype
    if not said:
        parts[0]["torch_dtype"] = dtype
    after = parts[0] | ({_OF_TEXT: parts[1]} if len(parts) > 1 else {})
    return raw if after == before else json.dumps(after, indent=2).encode() + b"\n"
