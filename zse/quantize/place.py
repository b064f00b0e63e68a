"""Where a checkpoint lies: a folder in Hugging Face form, or one GGUF file that stands for such.

Whoever converts sees texts by the names that they have in a folder, and tensors by Hugging Face's.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from zse.errors import CheckpointError, NotFoundError
from zse.quantize.formats.find import format_of
from zse.quantize.gguf.documents import documents_in, read_header
from zse.quantize.gguf.kept import gguf_format
from zse.quantize.gguf.weights import GgufFile
from zse.quantize.near_miss import near_checkpoint
from zse.quantize.safetensors_file import SafetensorsFile, StoredTensor
from zse.quantize.weight_files import INDEX_NAME, find_weight_files, read_weight_map

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from zse.quantize.formats.matrix import WeightFormat

CONFIG = "config.json"


class TensorReader(Protocol):
    """What rows of tensors are read from. Reads are safe from several threads."""

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows: everything but the last axis; of a vector its numbers."""
        ...


class WeightFile(TensorReader, Protocol):
    """An open file of tensors."""

    path: Path
    size_bytes: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """By name."""
        ...

    def close(self) -> None: ...


class Place(Protocol):
    """Where a checkpoint lies."""

    path: Path

    def names(self) -> list[str]:
        """Return the names of the texts and files that there are."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a text; None where there is none."""
        ...

    def weight_paths(self) -> list[Path]:
        """Return the files that hold the weights."""
        ...

    def open_weights(self, path: Path) -> WeightFile:
        """Open one of them."""
        ...

    def shard_of_tensors(self) -> Mapping[str, str]:
        """Return tensor -> the name of its file, where the checkpoint says it."""
        ...

    def weight_format(self, config_json: Mapping[str, Any], /) -> WeightFormat | None:
        """Return how matrices are quantized already; None where they are not, or by their family.

        Raises:
            UnsupportedModelError: An option of the format is not supported.
        """
        ...


def place_of(path: Path) -> Place:
    """Return the place of a checkpoint.

    Raises:
        NotFoundError: There is neither a folder with a config.json nor a GGUF file.
    """
    if path.is_file():
        return GgufPlace(path)
    return FolderPlace(path)


class FolderPlace:
    """A folder in Hugging Face form: config.json, safetensors, and texts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        if not folder.is_dir():
            raise NotFoundError(f"{folder} is not a folder")
        if not (folder / CONFIG).is_file():
            raise near_checkpoint(folder) or NotFoundError(
                f"{folder} holds no {CONFIG}",
                hint="Name a folder in Hugging Face form: config.json and model.safetensors.",
            )

    def names(self) -> list[str]:
        return [path.name for path in self.path.iterdir()]

    def read(self, name: str) -> bytes | None:
        path = self.path / name
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error

    def weight_paths(self) -> list[Path]:
        return find_weight_files(self.path)

    def open_weights(self, path: Path) -> WeightFile:
        return SafetensorsFile(path)

    def shard_of_tensors(self) -> Mapping[str, str]:
        index = self.path / INDEX_NAME
        return read_weight_map(index) if index.is_file() else {}

    def weight_format(self, config_json: Mapping[str, Any]) -> WeightFormat | None:
        return format_of(config_json)


class GgufPlace:
    """One GGUF file: its settings stand for config.json and the tokenizer's files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return list(self._texts)

    def read(self, name: str) -> bytes | None:
        return self._texts.get(name)

    def weight_paths(self) -> list[Path]:
        return [self.path]

    def open_weights(self, path: Path) -> WeightFile:
        return GgufFile(path)

    def shard_of_tensors(self) -> Mapping[str, str]:
        return {}

    def weight_format(self, _config_json: Mapping[str, Any]) -> WeightFormat | None:
        return gguf_format(read_header(self.path))

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        return documents_in(self.path)
