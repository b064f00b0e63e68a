"""How much memory a model needs, from its shapes alone, before a byte of it is loaded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zse.errors import DeviceError
from zse.format.reader import ZSEReader
from zse.models.builtin import builtin_checkpoint
from zse.models.families import read_checkpoint, read_header
from zse.models.resolve import Builtin, LocalFile, RemoteFile, resolve_model
from zse.models.storage import Storage
from zse.options import CacheOptions
from zse.records import record
from zse.stream.opening import open_remote

if TYPE_CHECKING:
    from pathlib import Path

    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec
    from zse.settings import Settings

DEFAULT_CONTEXT = 4096
"""Tokens of KV cache that an estimate includes when none are asked for."""

_BLOCK_TOKENS = CacheOptions().block_size
_OVERHEAD_SHARE = 0.05
_OVERHEAD_BYTES = 256 << 20  # interpreter, libraries, activations
_KV_ELEMENT_BYTES_CPU = 4  # float32
_KV_ELEMENT_BYTES_GPU = 2  # bfloat16


@record
class MemoryEstimate:
    """What one model takes at one scheme, in bytes."""

    quantization: str
    context_tokens: int
    """Tokens of KV cache counted."""
    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    """Activations, libraries and the interpreter."""

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes

    def to_json(self) -> dict[str, int | str]:
        """Return the fields and the total."""
        return {**asdict(self), "total_bytes": self.total_bytes}


@record
class ModelFacts:
    """What is known of a model without loading it."""

    spec: ModelSpec
    stored_bytes: int | None
    """Bytes of tensors when the model is a .zse file, whose schemes are settled; else None."""
    stored_quantization: str = ""
    """The scheme that most of the file's bytes have."""

    @property
    def plain_quantization(self) -> str:
        """The 16-bit scheme that loses least: the checkpoint's own."""
        return "fp16" if self.spec.dtype == "fp16" else "bf16"


def read_facts(model: str | Path, settings: Settings) -> ModelFacts:
    """Look a model up.

    Args:
        model: Anything ``resolve_model`` knows. Of a file behind an address the header is read; a
            repository of the hub is downloaded, as loading it would.
        settings: How addresses are reached.

    Raises:
        NotFoundError: There is no such model.
        UnsupportedModelError: Its architecture is not supported.
    """
    match resolve_model(model):
        case Builtin(name=name):
            return _facts_of_checkpoint(builtin_checkpoint(name))
        case LocalFile(path=path):
            with ZSEReader(path) as reader:
                return facts_of(reader.header)
        case RemoteFile(location=location):
            with open_remote(location, settings) as remote:
                return facts_of(remote.header)
        case _:
            from zse.quantize.source import resolve_source

            return _facts_of_checkpoint(resolve_source(model, settings).folder)


def facts_of(header: ZSEHeader) -> ModelFacts:
    """Return what the validated header of a .zse file says of its model."""
    return ModelFacts(
        spec=read_header(header.model_config),
        stored_bytes=header.bytes_by_scheme().total(),
        stored_quantization=header.main_scheme,
    )


def estimate_memory(
    facts: ModelFacts, quantization: str, *, on_gpu: bool, context_tokens: int = 0
) -> MemoryEstimate:
    """Estimate the memory of a model at a scheme.

    Args:
        facts: From ``read_facts``.
        quantization: int4, nf4, int8, fp16 or bf16; ignored for a .zse file.
        on_gpu: Keys and values of the type that a GPU keeps them in; else of a CPU's.
        context_tokens: Tokens of KV cache, counted in whole blocks; 0 means the model's context,
            at most 4096.
    """
    spec = facts.spec
    context = min(context_tokens or DEFAULT_CONTEXT, spec.max_position)
    num_blocks = -(-context // _BLOCK_TOKENS)
    weights = facts.stored_bytes
    if weights is None:
        weights = sum(map(Storage(quantization=quantization).stored_bytes, spec.weights()))
    element_bytes = _KV_ELEMENT_BYTES_GPU if on_gpu else _KV_ELEMENT_BYTES_CPU
    heads = spec.attention
    kv_token = 2 * len(spec.layers) * heads.num_kv_heads * heads.head_dim * element_bytes
    return MemoryEstimate(
        quantization=facts.stored_quantization or quantization,
        context_tokens=context,
        weights_bytes=weights,
        kv_bytes=num_blocks * _BLOCK_TOKENS * kv_token,
        overhead_bytes=_OVERHEAD_BYTES + int(weights * _OVERHEAD_SHARE),
    )


def largest_that_fits(estimates: list[MemoryEstimate], budget_bytes: int) -> MemoryEstimate:
    """Return the first estimate within the budget.

    Args:
        estimates: Best quality first.
        budget_bytes: Memory that may be used.

    Raises:
        DeviceError: Not even the last one fits.
    """
    for estimate in estimates:
        if estimate.total_bytes <= budget_bytes:
            return estimate
    least = estimates[-1]
    raise DeviceError(
        f"the model needs {least.total_bytes / 1e9:.2f} GB at {least.quantization} with "
        f"{least.context_tokens} tokens of context, but {budget_bytes / 1e9:.2f} GB are available",
        hint="Choose a smaller model or a shorter context, or give it more memory.",
    )


def _facts_of_checkpoint(folder: Path) -> ModelFacts:
    generation = folder / "generation_config.json"
    spec = read_checkpoint(
        _read_json(folder / "config.json"),
        _read_json(generation) if generation.is_file() else None,
    )
    return ModelFacts(spec=spec, stored_bytes=None)


def _read_json(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
