"""Medusa's heads as they are published: a folder beside the checkpoint of the model they are for.

``medusa_lm_head.safetensors`` has for head k its blocks, ``k.i.linear.weight`` and ``.bias``, and
behind the last of them ``k.n.weight``, which makes logits. ``config.json`` says how many there are.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import CheckpointError, NotFoundError
from zse.models.medusa import MOST_BLOCKS, MOST_HEADS, medusa_head
from zse.models.spec import WeightGroup
from zse.quantize.safetensors_file import SafetensorsFile, storage_dtype
from zse.quantize.weight_files import read_json, refuse_pickle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.format.safetensors import StoredTensor
    from zse.models.spec import ModelSpec

FILE_NAME = "medusa_lm_head.safetensors"
PREFIX = "medusa_head."
"""How names begin here, whether they do in the file or not: those of a model never do."""
_BLOCK = re.compile(r"(\d{1,3})\.(\d{1,3})\.linear\.(weight|bias)\Z")
_MATRIX = re.compile(r"(\d{1,3})\.(\d{1,3})\.weight\Z")
_HINT = "Name the folder of heads that were trained for this model, downloaded whole."


class MedusaFolder:
    """The heads of a folder, whose file is open until somebody closes it.

    Args:
        folder: Where they lie.
        spec: The model that they are to guess for.

    Raises:
        NotFoundError: There is no such folder.
        RefusedError: The heads are stored as pickle.
        CheckpointError: A tensor is missing, has no place in a head, or is of another model's
            shape; or ``config.json`` says another number of them.
        UnsupportedModelError: A tensor is quantized.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        if not folder.is_dir():
            raise NotFoundError(f"{folder} is no folder", hint=_HINT)
        self.path = folder / FILE_NAME
        if not self.path.is_file():
            refuse_pickle(str(folder), sorted(path.name for path in folder.iterdir()))
            raise CheckpointError(f"{folder} holds no {FILE_NAME}", hint=_HINT)
        self.file = SafetensorsFile(self.path)
        try:
            names = {name.removeprefix(PREFIX) for name in self.file.tensors}
            num_heads, num_blocks = self._counted(names)
            self._check_config(folder, num_heads, num_blocks)
            self.heads = tuple(
                medusa_head(
                    index,
                    num_blocks,
                    hidden=spec.hidden_size,
                    vocab_size=spec.vocab_size,
                    prefix=PREFIX,
                )
                for index in range(num_heads)
            )
            self._check_shapes()
        except BaseException:
            self.file.close()
            raise

    def groups(self) -> list[WeightGroup]:
        """Return what a file keeps of them, a group a head."""
        return [WeightGroup(name=one.name, weights=tuple(one.weights())) for one in self.heads]

    def to_json(self) -> dict[str, int | str]:
        """Return what a file's header says of them: how many there are, and their digest."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"heads": len(self.heads), "sha256": digest}

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """By their names with ``PREFIX``."""
        named = {f"{PREFIX}{k.removeprefix(PREFIX)}": one for k, one in self.file.tensors.items()}
        return {name: replace(one, name=name) for name, one in named.items()}

    def _counted(self, names: set[str]) -> tuple[int, int]:
        """Return how many heads there are, and how many blocks each has."""
        for name in sorted(names):
            if not (_BLOCK.match(name) or _MATRIX.match(name)):
                raise CheckpointError(
                    f"{self.path}: tensor {name[:200]} has no place in a head of Medusa",
                    hint="Heads are stored apart from their model: keep its own tensors out.",
                )
        blocks = [found for name in names if (found := _BLOCK.match(name))]
        all_found = [*blocks, *(found for name in names if (found := _MATRIX.match(name)))]
        num_heads = 1 + max((int(found[1]) for found in all_found), default=-1)
        num_blocks = 1 + max((int(found[2]) for found in blocks), default=-1)
        if not 1 <= num_heads <= MOST_HEADS or num_blocks > MOST_BLOCKS:
            raise CheckpointError(
                f"{self.path} has {num_heads} heads of {num_blocks} blocks; expected 1 to "
                f"{MOST_HEADS} heads of at most {MOST_BLOCKS}",
                hint=_HINT,
            )
        return num_heads, num_blocks

    def _check_config(self, folder: Path, num_heads: int, num_blocks: int) -> None:
        """Refuse a ``config.json`` that says other numbers than the file has."""
        path = folder / "config.json"
        if not path.is_file():
            return
        config = read_json(path)
        for name, found in (("medusa_num_heads", num_heads), ("medusa_num_layers", num_blocks)):
            if (said := config.get(name, found)) != found:
                raise CheckpointError(
                    f"{path} says {name} is {str(said)[:40]}; {FILE_NAME} has {found}", hint=_HINT
                )

    def _check_shapes(self) -> None:
        tensors, used = self.tensors, set()
        for piece in (one for head in self.heads for w in head.weights() for one in w.pieces()):
            stored, name = tensors.get(piece.name), piece.name.removeprefix(PREFIX)
            if stored is None:
                raise CheckpointError(f"{self.path} holds no tensor {name}", hint=_HINT)
            storage_dtype(stored)
            if stored.shape != piece.shape:
                raise CheckpointError(
                    f"{self.path}: tensor {name} has shape {list(stored.shape)}; the model calls "
                    f"for {list(piece.shape)}",
                    hint=_HINT,
                )
            used.add(piece.name)
        if extra := sorted(set(tensors) - used):
            raise CheckpointError(
                f"{self.path}: {len(extra)} tensors have no place in heads that are alike, such "
                f"as {extra[0].removeprefix(PREFIX)}",
                hint=_HINT,
            )
