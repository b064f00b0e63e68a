"""Back to Hugging Face: a .zse file as a ``transformers`` model, for code that expects one.

Weights are dequantized to float32, so this costs the memory that quantization saved. It is a bridge
for tools and comparisons; ``zse.LLM`` is the way to serve. transformers is imported on call only.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import FormatError, MissingDependencyError, UsageError
from zse.format.reader import ZSEReader
from zse.models.config import ModelConfig
from zse.models.names import EMBED, tensor_plan

if TYPE_CHECKING:
    import os

_TOKENIZER_SECTIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
)


def load_zse_model(
    path: str | os.PathLike[str], cache_weights: bool | str = "auto"
) -> tuple[Any, Any, dict[str, Any]]:
    """Rebuild the transformers model that a file was made from, with its stored weights.

    Args:
        path: The .zse file.
        cache_weights: "auto" or True: weights are dequantized once, in memory. Computing on packed
            weights is what ``zse.LLM`` does, so False is refused.

    Returns:
        The model (float32, on the CPU, ready for ``generate``), its tokenizer, and a description of
        the file: path, architecture, format_version, schemes, size_bytes, provenance.

    Raises:
        MissingDependencyError: transformers or torch is not installed.
        FormatError: The file is damaged or lacks its configuration.
        UsageError: ``cache_weights`` is something else.
    """
    if cache_weights not in ("auto", True):
        raise UsageError(
            f"cache_weights is {cache_weights!r}, expected 'auto' or True",
            hint="A transformers model needs plain weights; zse.LLM computes on packed ones.",
        )
    transformers = _transformers()
    with ZSEReader(path) as reader:
        model = _build_model(transformers, reader)
        tokenizer = _build_tokenizer(transformers, reader)
        schemes = Counter(str(reader.entry(name).scheme) for name in reader.names())
        info = {
            "path": str(path),
            "architecture": reader.header.architecture,
            "format_version": reader.header.format_version,
            "schemes": dict(schemes),
            "size_bytes": reader.size_bytes,
            "provenance": dict(reader.header.provenance),
        }
    return model, tokenizer, info


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise MissingDependencyError(
            f"load_zse_model needs transformers, which cannot be imported: {error}",
            hint="Install it with: pip install 'zllm-zse[hf]'",
        ) from error


def _build_model(transformers: Any, reader: ZSEReader) -> Any:
    settings = json.loads(bytes(_section(reader, "config.json")))
    config_class = type(transformers.AutoConfig.for_model(settings["model_type"]))
    config = config_class.from_dict(settings)
    config.dtype = "float32"
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.load_state_dict(_checkpoint_tensors(reader), strict=True)
    if reader.has_section("generation_config.json"):
        generation = json.loads(bytes(reader.section("generation_config.json")))
        model.generation_config = transformers.GenerationConfig.from_dict(generation)
    return model.eval()


def _checkpoint_tensors(reader: ZSEReader) -> dict[str, Any]:
    """Return float32 tensors under their checkpoint names; joined matrices are cut apart."""
    config = ModelConfig.from_json(reader.header.model_config)
    tensors: dict[str, Any] = {}
    for group in tensor_plan(config):
        for planned in group.tensors:
            whole = reader.tensor(planned.name)
            row = 0
            for name, shape in planned.sources:
                tensors[name] = whole[row : row + shape[0]]
                row += shape[0]
            if planned.name == EMBED and config.tie_word_embeddings:
                tensors["lm_head.weight"] = whole
    return tensors


def _build_tokenizer(transformers: Any, reader: ZSEReader) -> Any:
    _section(reader, "tokenizer.json")
    with tempfile.TemporaryDirectory(prefix="zse-tokenizer-") as folder:
        for name in _TOKENIZER_SECTIONS:
            if reader.has_section(name):
                Path(folder, name).write_bytes(bytes(reader.section(name)))
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _section(reader: ZSEReader, name: str) -> memoryview:
    if not reader.has_section(name):
        raise FormatError(f"the file has no section {name}")
    return reader.section(name)
