"""``export_model``: a .zse file as a folder that transformers and others load."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.errors import DiskFullError, UsageError
from zse.format.schemes import Scheme
from zse.models.families import read_header
from zse.quantize.export.folder import PartialFolder, check_folder
from zse.quantize.export.int4 import BITS, int4_pieces
from zse.quantize.export.shards import SHARD_BYTES, Shard, index_of, plan_shards, write_shard
from zse.quantize.export.texts import NAMES, text_name, texts_of
from zse.quantize.locate import ZSEReader
from zse.quantize.pieces import plain_pieces
from zse.records import record
from zse.store.local import FULL_ERRORS
from zse.store.location import parse_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec
    from zse.quantize.pieces import OutTensor

FORMATS = ("safetensors", "compressed-tensors")
DTYPES = ("auto", "fp16", "bf16")
_MODULES = ("linear", "attention", "experts", "gate", "latent", "head")
"""Kinds of weights that are linear layers elsewhere."""


@record
class ExportReport:
    """What an export made."""

    path: str
    format: str
    dtype: str
    """Of the weights, and of what computes: fp16 or bf16."""
    size_bytes: int
    """Of the weights."""
    files: int
    """Of weights."""
    tensors: int
    packed_matrices: int
    """Matrices that are INT4 there, with the codes of the file."""
    resumed_files: int
    """Files of weights that an earlier run had finished."""
    seconds: float
    warnings: tuple[str, ...] = ()


def export_model(
    model: str | Path,
    out: str | Path,
    *,
    format: str = "safetensors",  # noqa: A002 - what the option is called
    dtype: str = "auto",
    shard_bytes: int = SHARD_BYTES,
    resume: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write a .zse file as a checkpoint: safetensors, config.json, tokenizer and chat template.

    Args:
        model: The file, or whatever else ``zse.LLM`` takes.
        out: A folder that does not exist yet.
        format: ``safetensors``: 16 bits; ``compressed-tensors``: INT4 matrices stay INT4.
        dtype: ``fp16``, ``bf16`` or ``auto``: what 16-bit matrices of the file have, else what its
            checkpoint had.
        shard_bytes: Size of a file of weights, at most.
        resume: Go on with what a killed run left, and keep what is done if this run fails.
        force: Replace a checkpoint that is there.
        progress: Called with bytes that are done, and all.

    Raises:
        UsageError: An option has no meaning, or the file has no INT4 for compressed-tensors.
        WouldReplaceError: The folder exists already.
        NotFoundError: The model or the output's folder does not exist.
        FormatError: The file is damaged, or lacks its config.json.
        ConversionError: A number is above what fp16 holds.
        DiskFullError: The folder does not fit.
    """
    _check_choice("format", format, FORMATS)
    _check_choice("dtype", dtype, DTYPES)
    location = parse_location(out)
    if not location.is_local:
        raise UsageError(
            f"{location} is no folder here",
            hint="Export to a local folder, then copy its files to where they belong.",
        )
    folder = location.path.expanduser()
    check_folder(folder, (name.partition("/")[0] for name in NAMES), force=force)
    started = time.monotonic()
    with ZSEReader(model) as reader:
        export = _Export(reader, dtype, is_packed=format == FORMATS[1])
        written = export.write(folder, shard_bytes, keep=resume, notify=progress)
    return ExportReport(
        path=str(folder),
        format=format,
        dtype=export.dtype.value,
        packed_matrices=len(export.packed),
        seconds=time.monotonic() - started,
        warnings=export.warnings(),
        **written,
    )


class _Export:
    """What is made of a file.

    Args:
        reader: The file, open.
        dtype: One of ``DTYPES``.
        is_packed: Whether INT4 stays INT4.
    """

    def __init__(self, reader: ZSEReader, dtype: str, *, is_packed: bool) -> None:
        self._reader = reader
        spec = read_header(reader.header.model_config)
        self._family = spec.family
        self._groups = list(_groups_in(reader, spec))
        self._weights = [weight for _, weights in self._groups for weight in weights]
        self.dtype = _dtype_of(reader, self._weights, spec.dtype, dtype)
        self._int4 = int4_pieces(reader, self._weights) if is_packed else {}
        self.packed = [piece for pieces in self._int4.values() for piece in pieces]
        self._is_even = all(piece.is_even() for piece in self.packed)
        self._plain_modules: list[str] = []
        self._group_of: dict[str, str] = {}
        self._tensors = list(self._all_tensors())
        if is_packed and not self.packed:
            schemes = sorted({reader.entry(weight.name).scheme for weight in self._weights})
            raise UsageError(
                f"compressed-tensors keeps INT4 matrices; the file has {', '.join(schemes)}",
                hint="Leave --format out: 16 bits hold what is there.",
            )

    def write(
        self,
        out: Path,
        shard_bytes: int,
        *,
        keep: bool,
        notify: Callable[[int, int], None] | None,
    ) -> dict[str, Any]:
        """Write the folder; return what a report says of it."""
        shards = plan_shards(self._tensors, shard_bytes)
        texts = texts_of(self._reader, self._family, self.dtype, self._quantization())
        texts |= index_of(shards)
        try:
            with PartialFolder(out, self._digest(shards, texts), keep=keep) as partial:
                whole = partial.finished()
                resumed = [shard for shard in shards if shard.name in whole]
                self._write_shards(shards, partial, whole, notify or (lambda _done, _all: None))
                for name, data in texts.items():
                    partial.write(name, data)
                partial.publish()
        except OSError as error:
            if error.errno in FULL_ERRORS:
                raise DiskFullError(f"no room for {out}: {error.strerror}") from error
            raise
        return {
            "size_bytes": sum(shard.length_bytes for shard in shards),
            "files": len(shards),
            "tensors": len(self._tensors),
            "resumed_files": len(resumed),
        }

    def warnings(self) -> tuple[str, ...]:
        """Return what was lost, a sentence each; known when all is written."""
        shifted = sum(piece.shifted_groups for piece in self.packed)
        if not shifted:
            return ()
        total = sum(piece.num_groups for piece in self.packed)
        return (
            f"{shifted} of {total} groups have their zero between two codes, which "
            "compressed-tensors does not hold: these are shifted by up to half a step. "
            "In 16 bits (without --format) nothing is lost.",
        )

    def _write_shards(
        self,
        shards: list[Shard],
        partial: PartialFolder,
        whole: set[str],
        notify: Callable[[int, int], None],
    ) -> None:
        total = sum(shard.length_bytes for shard in shards)
        done = sum(shard.length_bytes for shard in shards if shard.name in whole)

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            notify(done, total)

        on_bytes(0)
        for shard in shards:
            if shard.name not in whole:
                write_shard(shard, partial.path / shard.name, on_bytes, self._release)

    def _release(self, tensor: OutTensor) -> None:
        """Let go of what was read of the file for a tensor."""
        self._reader.release(self._group_of[tensor.name])

    def _all_tensors(self) -> Iterator[OutTensor]:
        for group, weights in self._groups:
            for tensor in (tensor for weight in weights for tensor in self._made_of(weight)):
                self._group_of[tensor.name] = group
                yield tensor

    def _made_of(self, weight: WeightSpec) -> Iterator[OutTensor]:
        """Return the tensors of the checkpoint that a weight stands for."""
        for packed in self._int4.get(weight.name, ()):
            yield from packed.tensors(is_even=self._is_even)
        if weight.name in self._int4:
            return
        for piece in plain_pieces(self._reader, weight, self.dtype):
            if weight.kind in _MODULES and piece.name.endswith(".weight"):
                self._plain_modules.append(piece.name.removesuffix(".weight"))
            yield piece

    def _quantization(self) -> dict[str, Any] | None:
        """Return the ``quantization_config`` of what is written."""
        if not self.packed:
            return None
        sizes = Counter(piece.group_size for piece in self.packed)
        groups = {}
        for index, (size, _) in enumerate(sizes.most_common()):
            modules = [piece.module for piece in self.packed if piece.group_size == size]
            weights = {
                "num_bits": BITS,
                "type": "int",
                "strategy": "group",
                "group_size": size,
                "symmetric": self._is_even,
                "dynamic": False,
            }
            groups[f"group_{index}"] = {
                "targets": ["Linear"] if len(sizes) == 1 else modules,
                "weights": weights,
                "input_activations": None,
                "output_activations": None,
            }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": self._plain_modules,
        }

    def _digest(self, shards: list[Shard], texts: Mapping[str, bytes]) -> str:
        """Return what decides every byte of the folder."""
        header = hashlib.sha256(self._reader.header.to_bytes()).hexdigest()
        files = {shard.name: [tensor.name for tensor in shard.tensors] for shard in shards}
        named = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
        told = [header, self.dtype.value, files, named]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _groups_in(reader: ZSEReader, spec: ModelSpec) -> Iterator[tuple[str, list[WeightSpec]]]:
    """Return the weights that a file has by group, heads that guess further tokens among them."""
    names = set(reader.names())
    for group in (*spec.groups(), *spec.spare_groups()):
        if held := [_renamed(weight) for weight in group.weights if weight.name in names]:
            yield group.name, held


def _renamed(weight: WeightSpec) -> WeightSpec:
    """Return a weight with the names that its tensors have in a model of text alone."""
    sources = (replace(source, name=text_name(source.name)) for source in weight.sources)
    return replace(weight, sources=tuple(sources))


def _dtype_of(reader: ZSEReader, weights: list[WeightSpec], came: str, asked: str) -> Scheme:
    """Return the 16-bit type that is written."""
    if asked != "auto":
        return Scheme(asked)
    found = Counter(reader.entry(weight.name).scheme for weight in weights if weight.is_product)
    plain = [scheme for scheme, _ in found.most_common() if scheme in (Scheme.FP16, Scheme.BF16)]
    return plain[0] if plain else Scheme.FP16 if came == "fp16" else Scheme.BF16


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} {value!r} is not known", hint=f"Use one of {', '.join(choices)}.")
