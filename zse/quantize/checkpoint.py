"""A checkpoint folder in Hugging Face form: found, checked and read row by row.

Everything that can be wrong without reading weights (files, names, shapes, types) is found when
the checkpoint is opened, because a conversion that fails after an hour is worse than no answer.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from zse.errors import CheckpointError, NotFoundError, RefusedError
from zse.models.config import ModelConfig
from zse.models.names import GroupPlan, tensor_plan
from zse.quantize.safetensors_file import SafetensorsFile, StoredTensor, storage_dtype

if TYPE_CHECKING:
    from pathlib import Path

    import torch

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_PREFIX = "model."
# Tables that older tools saved and that every engine computes.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".masked_bias")


class Checkpoint:
    """An open checkpoint. Use as a context manager.

    Args:
        folder: Holds config.json and model.safetensors, or shards and their index.

    Raises:
        NotFoundError: The folder or its config.json does not exist.
        RefusedError: The weights are stored as pickle.
        UnsupportedModelError: The architecture or a tensor type is not supported.
        CheckpointError: A shard or tensor is missing, unexpected, or of the wrong shape.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise NotFoundError(f"{folder} is not a folder")
        if not (folder / "config.json").is_file():
            raise NotFoundError(
                f"{folder} holds no config.json",
                hint="Name a folder in Hugging Face form: config.json and model.safetensors.",
            )
        self.config_json = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        self.generation_config = read_json(generation) if generation.is_file() else None
        self.model_config = ModelConfig.from_huggingface(self.config_json, self.generation_config)
        self._files: list[SafetensorsFile] = []
        self._tensors: dict[str, tuple[SafetensorsFile, StoredTensor]] = {}
        try:
            for path in find_weight_files(folder):
                self._open_file(path)
            self._check_index()
            self._check_against(self.plan)
        except BaseException:
            self.close()
            raise

    @cached_property
    def plan(self) -> list[GroupPlan]:
        """Our tensors in execution order, as the configuration prescribes them."""
        return tensor_plan(self.model_config)

    @property
    def source_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size_bytes for file in self._files)

    def tensor(self, name: str) -> StoredTensor:
        """Return what is known of a tensor, by its checkpoint name."""
        return self._find(name)[1]

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows of a tensor in its stored dtype; safe from several threads."""
        file, tensor = self._find(name)
        return file.read_rows(tensor, start, stop)

    def read_file(self, name: str) -> bytes | None:
        """Return a metadata file of the folder, or None when it is absent."""
        path = self.folder / name
        return path.read_bytes() if path.is_file() else None

    def close(self) -> None:
        """Close the weight files."""
        while self._files:
            self._files.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_file(self, path: Path) -> None:
        file = SafetensorsFile(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            if name in self._tensors:
                first = self._tensors[name][0].path.name
                raise CheckpointError(f"tensor {name} is in both {first} and {path.name}")
            self._tensors[name] = (file, tensor)

    def _find(self, name: str) -> tuple[SafetensorsFile, StoredTensor]:
        # Checkpoints saved from the bare model, without its head, have no prefix.
        found = self._tensors.get(name) or self._tensors.get(name.removeprefix(_PREFIX))
        if found is None:
            raise CheckpointError(
                f"the checkpoint holds no tensor {name}; config.json asks for it",
                hint="Download the checkpoint again, or check that config.json belongs to it.",
            )
        return found

    def _check_index(self) -> None:
        if not (self.folder / INDEX_NAME).is_file():
            return
        for name, shard in read_weight_map(self.folder / INDEX_NAME).items():
            if name not in self._tensors or self._tensors[name][0].path.name != shard:
                raise CheckpointError(
                    f"the index says that {shard} holds {name}, but it does not",
                    hint="Download the checkpoint again.",
                )

    def _check_against(self, plan: list[GroupPlan]) -> None:
        used = set()
        for source in (
            item for group in plan for tensor in group.tensors for item in tensor.sources
        ):
            name, shape = source
            stored = self.tensor(name)
            storage_dtype(stored)
            if stored.shape != shape:
                raise CheckpointError(
                    f"tensor {name} has shape {list(stored.shape)}; config.json says {list(shape)}",
                    hint="Check that config.json belongs to this checkpoint.",
                )
            used.add(stored.name)
        ignored = {"lm_head.weight"} if self.model_config.tie_word_embeddings else set()
        extra = sorted(
            name
            for name in set(self._tensors) - used - ignored
            if not name.endswith(_IGNORED_SUFFIXES)
        )
        if extra:
            raise CheckpointError(
                f"{len(extra)} tensors have no place in a {self.model_config.family} model, "
                f"such as {extra[0]}",
                hint="Leaving them out would change the answers. Merge adapters before converting.",
            )


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
    raise CheckpointError(
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
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}; expected a JSON object")
    return value
