"""A GGUF file as the texts of a checkpoint folder; no weight is read and torch is not imported."""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError
from zse.quantize.gguf.architectures import find_architecture
from zse.quantize.gguf.config import config_of, generation_of, pooling_of
from zse.quantize.gguf.header import GgufHeader, parse_header
from zse.quantize.gguf.shards import joined, shards_of
from zse.quantize.gguf.texts import texts_of

if TYPE_CHECKING:
    from pathlib import Path

_FACTORS = "rope_freqs.weight"


def read_header(path: Path) -> GgufHeader:
    """Return what a file says of itself; of a model that was split, what all of its files say.

    Raises:
        CheckpointError: It cannot be read, is cut short, or breaks the format; or the files are
            not those of one model.
        UnsupportedModelError: Its version, or a type of its numbers, is not known.
    """
    paths = shards_of(path)
    return joined([_read_one(shard) for shard in paths], paths)


def _read_one(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if not size_bytes:
                raise CheckpointError(f"{path} is empty", hint="Download the file again.")
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                return parse_header(mapped, size_bytes, str(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def config_in(path: Path, header: GgufHeader) -> dict[str, Any]:
    """Return the config.json that a file stands for; fails as ``config_of`` does."""
    prefix, architecture = find_architecture(header.settings, str(path))
    return config_of(header, prefix, architecture, str(path), _rotary_factors(path, header))


def documents_in(path: Path) -> dict[str, bytes]:
    """Return the texts that a file stands for, by the names that they have in a folder.

    Raises:
        CheckpointError: The file is damaged.
        UnsupportedModelError: Its architecture or its tokenizer is not known.
    """
    header = read_header(path)
    made = {
        "config.json": config_in(path, header),
        "generation_config.json": generation_of(header.settings),
        "1_Pooling/config.json": pooling_of(header.settings),
    }
    documents = {name: json.dumps(value).encode() for name, value in made.items() if value}
    return documents | texts_of(header.settings, str(path))


def _rotary_factors(path: Path, header: GgufHeader) -> list[float] | None:
    """Return what each rotary frequency is divided by (Llama 3), if the file says it."""
    tensor = header.tensors.get(_FACTORS)
    if tensor is None:
        return None
    if tensor.type.name != "F32" or len(tensor.shape) != 1:
        raise CheckpointError(f"{path}: {_FACTORS} is {tensor.type.name} {list(tensor.shape)}")
    with shards_of(path)[tensor.shard].open("rb") as file:
        data = os.pread(file.fileno(), tensor.length_bytes, tensor.offset_bytes)
    return list(struct.unpack(f"<{tensor.shape[0]}f", data))
