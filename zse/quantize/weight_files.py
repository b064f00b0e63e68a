"""The files of a checkpoint folder, by their names and their index alone.

No weight is read here and torch is not imported, so that a model that was converted before is found
without it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.errors import CheckpointError, RefusedError
from zse.quantize.near_miss import near_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def find_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, in name order.

    Raises:
        RefusedError: There are only pickle files.
        CheckpointError: There are no weights, or a shard that the index lists is missing.
    """
    if (folder / INDEX_NAME).is_file():
        shards = sorted(set(read_weight_map(folder / INDEX_NAME).values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise CheckpointError(
                f"{len(missing)} of {len(shards)} shards are missing in {folder}: "
                + ", ".join(missing[:3]),
                hint="Download the checkpoint again; files of it are missing.",
            )
        return [folder / shard for shard in shards]
    if (folder / SINGLE_NAME).is_file():
        return [folder / SINGLE_NAME]
    names = sorted(path.name for path in folder.iterdir())
    refuse_pickle(str(folder), names)
    raise near_checkpoint(folder) or CheckpointError(
        f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}",
        hint="Download the checkpoint again; its weights are missing.",
    )


def refuse_pickle(where: str, names: list[str]) -> None:
    """Raise RefusedError when ``names`` hold pickle weights (called when there are no others)."""
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        raise RefusedError(
            f"{where} holds its weights as pickle ({pickles[0]}); loading pickle runs whatever "
            "code the file contains",
            hint="Use a checkpoint in safetensors, or save this one again with "
            "save_pretrained(..., safe_serialization=True) on a machine you can lose.",
        )


def read_weight_map(path: Path) -> dict[str, str]:
    """Return tensor name -> shard file name of an index.

    Raises:
        CheckpointError: The index is malformed, or a shard name leaves the folder.
    """
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map", hint="Download the checkpoint again.")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and "/" not in shard and "\\" not in shard
        if not plain or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} puts {name[:200]} into {str(shard)[:200]!r}; "
                "expected the name of a .safetensors file in the same folder"
            )
    return weight_map


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: The file cannot be read, or is not a JSON object.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object that a text is; ``where`` it came from is for errors.

    Raises:
        CheckpointError: It is none.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds {type(value).__name__}; expected a JSON object")
    return value
