"""The tensors of a GGUF file by Hugging Face's names, read row by row."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from zse.errors import CheckpointError
from zse.quantize.gguf.architectures import find_architecture
from zse.quantize.gguf.dequantize import dequantize
from zse.quantize.gguf.documents import read_header
from zse.quantize.gguf.layouts import views_of
from zse.quantize.gguf.shards import shards_of
from zse.quantize.gguf.views import KEPT, mxfp4_blocks, mxfp4_groups, runs
from zse.quantize.safetensors_file import StoredTensor, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zse.quantize.gguf.header import GgufTensor
    from zse.quantize.gguf.types import BlockType
    from zse.quantize.gguf.views import View


class GgufFile:
    """An open GGUF model, as a checkpoint's weights. Reads are safe from several threads.

    Args:
        path: Its file; any of them where it was split.

    Raises:
        CheckpointError: The file is missing, cut short, or breaks the format.
        UnsupportedModelError: Its architecture, or a type of its numbers, is not known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path)
        prefix, architecture = find_architecture(self.header.settings, str(path))
        self._views = dict(views_of(self.header, prefix, architecture, str(path)))
        self._paths = shards_of(path)
        self._fds: list[int] = []
        try:
            for shard in self._paths:
                self._fds.append(_opened(shard))
            self.size_bytes = sum(os.fstat(fd).st_size for fd in self._fds)
        except BaseException:
            self.close()
            raise

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """By Hugging Face's names."""
        return {name: view.stored(name) for name, view in self._views.items()}

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop``, [rows, columns], or numbers of a vector.

        Raises:
            CheckpointError: The file ends before the rows do, or cannot be read.
            MissingDependencyError: Their type needs the package ``gguf``.
        """
        view = self._views[tensor.name]
        if view.packed:
            return self._packed(view, start, stop)
        if view.is_flat or len(view.shape) < 2:
            return self._flat(view)[start:stop]
        if view.is_transposed:
            found = self._turned(view, start, stop)
        else:
            found = self._at(view, torch.arange(start, stop), self._numbers)
        if view.columns is not None:
            found = found[:, view.columns(torch.arange(found.shape[1]))]
        return found if view.change is None else view.change(found.float())

    def read_blocks(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return the bytes of rows, uint8 [rows, blocks, bytes of a block].

        Of a matrix whose columns lie as they are.
        """
        view = self._views[tensor.name]
        raw = self._at(view, torch.arange(start, stop), _bytes)
        return raw.view(stop - start, -1, view.tensors[0].type.size_bytes)

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _at(
        self,
        view: View,
        rows: torch.Tensor,
        read: Callable[[torch.Tensor, BlockType], torch.Tensor],
    ) -> torch.Tensor:
        """Return rows of a view, [rows, columns], as ``read`` makes them of the file's bytes."""
        numbers = view.numbers_of(rows)
        if view.places is None:
            return self._run(view, int(numbers[0]), int(numbers[-1]) + 1, read)
        ascending = numbers.sort()
        found, within = [], ascending.values
        for first, last in runs(within):
            part = within[(within >= first) & (within <= last)]
            found.append(self._run(view, first, last + 1, read)[part - first])
        return torch.cat(found)[ascending.indices.argsort()]

    def _run(
        self,
        view: View,
        start: int,
        stop: int,
        read: Callable[[torch.Tensor, BlockType], torch.Tensor],
    ) -> torch.Tensor:
        """Return consecutive rows of what lies one below the other."""
        parts, below = [], 0
        for tensor in view.tensors:
            first, end = max(start - below, 0), min(stop - below, tensor.num_rows)
            if first < end:
                raw = self._bytes_of(tensor, first, end - first)
                parts.append(read(raw, tensor.type).view(end - first, -1))
            below += tensor.num_rows
        return _stacked(parts)

    def _bytes_of(self, tensor: GgufTensor, start: int, count: int) -> torch.Tensor:
        data = read_exactly(
            self._fds[tensor.shard],
            self._paths[tensor.shard],
            tensor.offset_bytes + start * tensor.row_bytes,
            count * tensor.row_bytes,
        )
        return torch.frombuffer(data, dtype=torch.uint8)

    def _numbers(self, raw: torch.Tensor, kind: BlockType) -> torch.Tensor:
        if kind.name in KEPT:
            return raw.view(torch.float16 if kind.name == "F16" else torch.bfloat16)
        return dequantize(raw, kind)

    def _flat(self, view: View) -> torch.Tensor:
        """Return all numbers of a vector or a small table, [numbers] or [rows, columns]."""
        parts = [
            self._numbers(self._bytes_of(tensor, 0, tensor.num_rows), tensor.type)
            for tensor in view.tensors
        ]
        found = _stacked(parts)
        if view.places is not None:
            found = found[view.places(torch.arange(len(found)))]
        if view.change is not None:
            found = view.change(found.float())
        return found.view(-1, view.shape[-1]) if len(view.shape) > 1 else found

    def _turned(self, view: View, start: int, stop: int) -> torch.Tensor:
        """Return rows that are columns of whole matrices of the file."""
        inputs, outputs = view.shape[-2:]
        first, end = start // inputs, -(-stop // inputs)
        rows = torch.arange(first * outputs, end * outputs)
        found = self._at(view, rows, self._numbers).view(end - first, outputs, inputs)
        turned = found.transpose(1, 2).reshape(-1, outputs)
        return turned[start - first * inputs : stop - first * inputs]

    def _packed(self, view: View, start: int, stop: int) -> torch.Tensor:
        """Return bytes of MXFP4, as checkpoints have them."""
        groups = mxfp4_groups(view) if view.packed == "blocks" else 1
        rows = torch.arange(start // groups, -(-stop // groups))
        raw = self._at(view, rows, _bytes).view(-1, view.tensors[0].type.size_bytes)
        if view.packed == "blocks":
            return mxfp4_blocks(raw)[start % groups :][: stop - start]
        return raw[:, 0].reshape(len(rows), -1)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be opened: {error.strerror}",
            hint="Check its permissions, and how many files may be open (ulimit -n).",
        ) from error


def _bytes(raw: torch.Tensor, _kind: BlockType) -> torch.Tensor:
    return raw


def _stacked(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return rows one below the other, as float32 where their types differ."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.float() for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
