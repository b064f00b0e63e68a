"""``load_zse_model``: build the model of the file's own config.json, fill it from the file."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zse.errors import FormatError, UsageError, needing
from zse.models.families import read_header
from zse.quantize.huggingface.bnb import bitsandbytes_layers
from zse.quantize.huggingface.fill import fill_model, is_kept_as_is, pack_layers
from zse.quantize.huggingface.kernels import open_kernels
from zse.quantize.huggingface.layers import Place, ZSELinear
from zse.quantize.huggingface.restore import restored_model
from zse.quantize.huggingface.spread import devices_of, spread
from zse.quantize.locate import ZSEReader
from zse.quantize.place_of_work import choose_device
from zse.settings import load_settings

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from zse.quantize.huggingface.layers import LayerMaker
    from zse.quantize.huggingface.spread import DeviceMap

BACKENDS = ("zse", "bnb")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_SECTIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
)


def load_zse_model(
    path: str | os.PathLike[str],
    cache_weights: bool | str = "auto",
    *,
    backend: str = "zse",
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Rebuild the transformers model that a file was made from, with the weights of the file.

    Norms and embeddings are plain tensors; linear layers keep their packed weights. Experts, and
    what a file keeps in another order than checkpoints do, are dequantized once.

    Args:
        path: The .zse file, or whatever else ``zse.LLM`` takes.
        cache_weights: True makes every layer a plain one, dequantized once, at the price of the
            memory that quantization saved; "auto" and False compute on packed weights.
        backend: ``zse``: our kernels on a GPU, torch on a CPU; ``bnb``: NF4 layers become
            bitsandbytes' Linear4bit.
        device: ``auto`` (the first GPU, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        dtype: Of activations and plain tensors: ``float32``, ``bfloat16`` or ``float16``; ``auto``
            is float32 on a CPU and bfloat16 on a GPU.
        device_map: Spreads the model over several devices, as in transformers: ``auto``,
            ``balanced``, ``balanced_low_0``, ``sequential``, or parts' names with their devices.
            The model is put together in the host's memory first.
        max_memory: What each device may take, by a GPU's number or ``cpu``: bytes, or ``"20GiB"``.

    Returns:
        The model (evaluation mode, ready for ``generate``), its tokenizer, and a description of the
        file: path, architecture, format_version, schemes, size_bytes, provenance.

    Raises:
        MissingDependencyError: transformers, or for ``bnb`` bitsandbytes, is not installed.
        FormatError: The file is damaged or lacks its configuration.
        UsageError: An option is something else, the file has no NF4 layer for ``bnb``, or the
            devices do not hold the model.
    """
    _check_choices(cache_weights, backend)
    _check_spread(device_map, max_memory, device, backend)
    with needing("hf", "load_zse_model"):
        import transformers
    on = choose_device(device)
    place = Place(device=on, dtype=choose_dtype(dtype, on))
    if device_map is not None:
        on = torch.device("cpu")
        place = replace(place, device=on)
    with ZSEReader(path) as reader:
        if cache_weights is True:
            layers: LayerMaker = place.plain_layer
        elif backend == "bnb":
            layers = bitsandbytes_layers(reader, place)
        else:
            kernels = open_kernels(on, reader, load_settings())
            layers = partial(ZSELinear, device=on, kernels=kernels)
        model = _empty_model(transformers, reader, place.dtype)
        spec = read_header(reader.header.model_config)
        if all(map(is_kept_as_is, spec.weights())):
            fill_model(model, reader, spec, layers, place)
        else:
            model = restored_model(model, reader, spec, place)
            pack_layers(model, reader, spec, layers)
        if device_map is not None:
            devices = devices_of(model, device_map, max_memory)
            model = spread(model, devices, reader, load_settings())
        tokenizer = _build_tokenizer(transformers, reader)
        info = _describe(reader.path, reader)
    return model.eval(), tokenizer, info


def _check_choices(cache_weights: bool | str, backend: str) -> None:
    if cache_weights not in ("auto", True, False):
        raise UsageError(f"cache_weights is {cache_weights!r}, expected 'auto', True or False")
    if backend not in BACKENDS:
        raise UsageError(
            f"backend {backend!r} is not known", hint=f"Use one of {', '.join(BACKENDS)}."
        )


def _check_spread(
    device_map: DeviceMap | None,
    max_memory: Mapping[int | str, int | str] | None,
    device: str,
    backend: str,
) -> None:
    if device_map is None and max_memory is not None:
        raise UsageError("max_memory is given without device_map", hint='Add device_map="auto".')
    if device_map is not None and (device != "auto" or backend != "zse"):
        raise UsageError("device_map is given beside a device, or for bnb", hint="Leave that out.")


def choose_dtype(dtype: str, place: torch.device) -> torch.dtype:
    """Return the torch dtype that a user's word means on a device.

    Raises:
        UsageError: It is not one that a model computes in.
    """
    if dtype == "auto":
        return torch.float32 if place.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not known", hint=f"auto, {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _empty_model(transformers: Any, reader: ZSEReader, dtype: torch.dtype) -> Any:
    """Return the model with every parameter on the meta device: shapes without memory."""
    settings = json.loads(bytes(_section(reader, "config.json")))
    settings.pop("quantization_config", None)  # of the checkpoint; these weights are the file's
    config_class = type(transformers.AutoConfig.for_model(settings["model_type"]))
    config = config_class.from_dict(settings)
    config.dtype = dtype
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    if reader.has_section("generation_config.json"):
        generation = json.loads(bytes(reader.section("generation_config.json")))
        model.generation_config = transformers.GenerationConfig.from_dict(generation)
    return model


def _build_tokenizer(transformers: Any, reader: ZSEReader) -> Any:
    _section(reader, "tokenizer.json")
    with tempfile.TemporaryDirectory(prefix="zse-tokenizer-") as folder:
        for name in _TOKENIZER_SECTIONS:
            if reader.has_section(name):
                Path(folder, name).write_bytes(bytes(reader.section(name)))
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _describe(path: str | os.PathLike[str], reader: ZSEReader) -> dict[str, Any]:
    schemes = Counter(str(reader.entry(name).scheme) for name in reader.names())
    return {
        "path": str(path),
        "architecture": reader.header.architecture,
        "format_version": reader.header.format_version,
        "schemes": dict(schemes),
        "size_bytes": reader.size_bytes,
        "provenance": dict(reader.header.provenance),
    }


def _section(reader: ZSEReader, name: str) -> memoryview:
    if not reader.has_section(name):
        raise FormatError(f"the file has no section {name}")
    return reader.section(name)
