"""What travels with the weights: config.json, generation settings, tokenizer and chat template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.errors import FormatError
from zse.models.config_json import OF_THE_WHOLE
from zse.models.families import all_families
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
_TEXT = "text_config"


def texts_of(
    reader: ZSEReader, family: str, dtype: Scheme, quantization: Mapping[str, Any] | None
) -> dict[str, bytes]:
    """Return the texts of a file, by their names in a folder.

    Args:
        family: Of the model.
        dtype: Of the weights.
        quantization: ``quantization_config`` of what is written; None: nothing is quantized.

    Raises:
        FormatError: The file has no config.json.
    """
    held = [name for name in dict.fromkeys(NAMES) if reader.has_section(name)]
    texts = {name: bytes(reader.section(name)) for name in held}
    if CONFIG not in texts:
        raise FormatError(f"the file has no section {CONFIG}")
    texts[CONFIG] = _config(texts[CONFIG], family, _DTYPES[dtype.value], quantization)
    return texts


def _config(raw: bytes, family: str, dtype: str, quantization: Mapping[str, Any] | None) -> bytes:
    """Return a config.json that says what the weights are; as it is where it does."""
    before = parse_json(raw, CONFIG)
    after = _of_text(before, family)
    after.pop("quantization_config", None)
    said = [name for name in ("dtype", "torch_dtype") if after.get(name) is not None]
    after |= dict.fromkeys(said or ["torch_dtype"], dtype)
    if quantization is not None:
        after["quantization_config"] = dict(quantization)
    return raw if after == before else json.dumps(after, indent=2).encode() + b"\n"


def _of_text(config: dict[str, Any], family: str) -> dict[str, Any]:
    """Return the config.json of a model's text alone, where it also sees or hears.

    A file has nothing of the other parts.
    """
    text = config.get(_TEXT)
    if not isinstance(text, dict):
        return dict(config)
    outer = {name: config[name] for name in OF_THE_WHOLE if name in config}
    return {**text, **outer, "architectures": [all_families()[family].ARCHITECTURES[0]]}


def text_name(name: str) -> str:
    """Return what a tensor of a text model is called where that model stands alone."""
    return name.replace("model.language_model.", "model.", 1)
