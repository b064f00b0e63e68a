"""A checkpoint in Hugging Face form, or in GGUF: found, checked and read row by row.

Everything that can be wrong without reading weights (files, names, shapes, types) is found when
the checkpoint is opened, because a conversion that fails after an hour is worse than no answer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from zse.errors import CheckpointError
from zse.format.mxfp4 import MXFP4_GROUP
from zse.models.families import read_checkpoint
from zse.models.weights import MXFP4
from zse.quantize.formats import unquantized_config
from zse.quantize.formats.quantized import QuantizedMatrices, quantized_in
from zse.quantize.medusa import MedusaFolder
from zse.quantize.place import place_of
from zse.quantize.safetensors_file import (
    SafetensorsFile,
    StoredTensor,
    check_packed,
    storage_dtype,
)
from zse.quantize.weight_files import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from zse.models.spec import WeightGroup
    from zse.models.weights import Source, WeightSpec
    from zse.quantize.merging import Merging
    from zse.quantize.place import TensorReader, WeightFile

_PREFIX = "model."
_WHOLES = (_PREFIX, "transformer.", "bert.", "roberta.")
"""How names begin that lack this where a checkpoint was saved without its head."""
_OF_TEXT = ("", "language_model.", "model.language_model.")
"""How the names of a text model's tensors begin within a model of several parts."""
# Tables that older tools saved and that every engine computes.
_IGNORED_SUFFIXES = (
    ".rotary_emb.inv_freq",
    ".masked_bias",
    ".attn.bias",
    "embeddings.position_ids",
)


def tensors_of(source: Source) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a piece of a weight is read from, and the shapes they must have.

    What is MXFP4 already is two: ``_blocks``, uint8 [..., K/32, 16], whose byte b holds codes 2b
    and 2b + 1 of 32, low nibble first; and ``_scales``, uint8 [..., K/32], their exponents.
    """
    if source.packing != MXFP4:  # a format of ``formats`` shows its tensors as one
        return {source.name: source.shape}
    groups = (*source.shape[:-1], source.columns // MXFP4_GROUP)
    return {f"{source.name}_blocks": (*groups, MXFP4_GROUP // 2), f"{source.name}_scales": groups}


class Checkpoint:
    """An open checkpoint. Use as a context manager.

    Args:
        path: A folder with config.json and model.safetensors, or shards and their index; or a
            GGUF file.
        medusa: A folder of heads that guess, which are kept behind the model; None: none are.

    Raises:
        NotFoundError: The folder or its config.json does not exist.
        RefusedError: The weights are stored as pickle.
        UnsupportedModelError: The architecture or a tensor type is not supported.
        CheckpointError: A shard or tensor is missing, unexpected, or of the wrong shape.
    """

    def __init__(self, path: Path, medusa: Path | None = None) -> None:
        self.place = place_of(path)
        self.config_json = self._document("config.json")
        self.generation_config = (
            self._document("generation_config.json")
            if self.place.read("generation_config.json") is not None
            else None
        )
        self.format = self.place.weight_format(self.config_json)
        """How its matrices are quantized already; None where they are not, or in MXFP4."""
        self.spec = read_checkpoint(unquantized_config(self.config_json), self.generation_config)
        self.merging: Merging | None = None
        """What is added to its matrices as they are read."""
        self.left_out: list[str] = []
        """Tensors that have no part in texts."""
        self.medusa: MedusaFolder | None = None
        """Heads that guess, which are kept behind the model."""
        self._files: list[WeightFile] = []
        self._shards: dict[str, str] = {}
        """Tensor -> name of the file that it is in."""
        self._tensors: dict[str, tuple[TensorReader, StoredTensor]] = {}
        self._quantized = QuantizedMatrices({}, {})
        try:
            for path in self.place.weight_paths():
                self._open_file(path)
            self._check_index()
            self._find_quantized()
            if medusa is not None:
                self._add_heads(MedusaFolder(medusa, self.spec))
            self._check_tensors()
        except BaseException:
            self.close()
            raise

    @cached_property
    def plan(self) -> list[WeightGroup]:
        """Our tensors in execution order, as the configuration prescribes them.

        Heads that guess further tokens follow, where the checkpoint has all of their tensors.
        Weights whose codes a scheme of ours holds have it as their packing.
        """
        groups = [*self.spec.groups(), *filter(self._holds, self.spec.spare_groups())]
        if self.medusa is not None:
            groups += self.medusa.groups()
        return [
            replace(group, weights=tuple(map(self._as_packed, group.weights))) for group in groups
        ]

    @cached_property
    def widened(self) -> frozenset[str]:
        """Names of the weights that came quantized and cannot be kept so."""
        return frozenset(
            weight.name
            for group in self.plan
            for weight in group.weights
            if weight.packing is None
            and any(self._stored_name(piece) in self._quantized for piece in weight.pieces())
        )

    @property
    def source_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    def tensor(self, name: str) -> StoredTensor:
        return self._find(name)[1]

    def length_bytes(self, source: Source) -> int:
        """Return the size of all that is read for a piece of a weight."""
        return sum(self.tensor(name).length_bytes for name in tensors_of(source))

    def read_rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows of a tensor in its stored dtype; safe from several threads."""
        file, tensor = self._find(name)
        return file.read_rows(tensor, start, stop)

    def read_into(self, memory: Callable[[int], torch.Tensor]) -> None:
        """Have the rows of safetensors files read into what ``memory`` makes: uint8 [bytes]."""
        for file in self._files:
            if isinstance(file, SafetensorsFile):
                file.memory = memory

    def read_packed(self, name: str, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return rows of a matrix that is kept, as a file has them: the parts of its scheme."""
        return self._quantized.read_packed(self.tensor(name).name, start, stop)

    def close(self) -> None:
        while self._files:
            self._files.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _document(self, name: str) -> dict[str, Any]:
        return parse_json(self.place.read(name) or b"", f"{self.place.path}: {name}")

    def _open_file(self, path: Path) -> None:
        file = self.place.open_weights(path)
        self._files.append(file)
        for name, tensor in file.tensors.items():
            if name in self._tensors:
                raise CheckpointError(
                    f"tensor {name} is in both {self._shards[name]} and {path.name}"
                )
            self._tensors[name] = (file, tensor)
            self._shards[name] = path.name

    def _add_heads(self, folder: MedusaFolder) -> None:
        """Take heads that guess as further tensors, by names that no model's begin with."""
        self._files.append(folder.file)
        for name, tensor in folder.tensors.items():
            self._tensors[name] = (folder.file, tensor)
            self._shards[name] = folder.path.name
        self.medusa = folder

    def _find_quantized(self) -> None:
        """Put matrices in the place of the tensors that stand for them."""
        if self.format is None:
            return
        self._quantized, used = quantized_in(self._tensors, self.format)
        kept = {name: found for name, found in self._tensors.items() if name not in used}
        shown = {
            name: (self._quantized, tensor) for name, tensor in self._quantized.tensors.items()
        }
        self._tensors = kept | shown

    def _stored_name(self, source: Source) -> str:
        found = self._seek(source.name)
        return "" if found is None else found[1].name

    def _as_packed(self, weight: WeightSpec) -> WeightSpec:
        """Return a weight with its packing where all of its pieces have codes of one scheme."""
        found = {self._quantized.packing(self._stored_name(piece)) for piece in weight.pieces()}
        packing = found.pop()
        is_as_it_was = weight.factor == 1.0 and not weight.offset
        if found or packing is None or not is_as_it_was or not weight.is_product:
            return weight
        sources = tuple(replace(source, packing=packing) for source in weight.sources)
        return replace(weight, sources=sources)

    def _seek(self, name: str) -> tuple[TensorReader, StoredTensor] | None:
        # Checkpoints saved from the bare model, without its head, have no prefix.
        whole = next((prefix for prefix in _WHOLES if name.startswith(prefix)), "")
        bare = name.removeprefix(whole)
        names = [f"{part}{leaf}" for part in _OF_TEXT for leaf in (name, bare)]
        return next((self._tensors[one] for one in names if one in self._tensors), None)

    def _holds(self, group: WeightGroup) -> bool:
        names = (
            name
            for weight in group.weights
            for piece in weight.pieces()
            for name in tensors_of(piece)
        )
        return all(self._seek(name) is not None for name in names)

    def _find(self, name: str) -> tuple[TensorReader, StoredTensor]:
        found = self._seek(name)
        if found is None:
            raise CheckpointError(
                f"the checkpoint holds no tensor {name}; config.json asks for it",
                hint="Download the checkpoint again, or check that config.json belongs to it.",
            )
        return found

    def _is_left_out(self, name: str) -> bool:
        """Whether a tensor has no part in texts: those that see and hear, and keys unread."""
        bare = name
        for prefix in (_PREFIX, "language_model.", _PREFIX):
            bare = bare.removeprefix(prefix)
        return name.startswith(self.spec.left_out) or bare.startswith(self.spec.left_out)

    def _is_idle(self, name: str) -> bool:
        """Whether it is a bias of zeros: older tools save one beside each quantized matrix."""
        matrix = self._quantized.tensors.get(f"{name.removesuffix('bias')}weight")
        if matrix is None or not name.endswith(".bias"):
            return False
        file, tensor = self._tensors[name]
        if tensor.shape != matrix.shape[:1]:
            return False
        return not bool(file.read_rows(tensor, 0, tensor.num_rows).any())

    def _check_index(self) -> None:
        for name, shard in self.place.shard_of_tensors().items():
            if self._shards.get(name) != shard:
                raise CheckpointError(
                    f"the index says that {shard} holds {name}, but it does not",
                    hint="Download the checkpoint again.",
                )

    def _check_tensors(self) -> None:
        used = set()
        weights = [weight for group in self.plan for weight in group.weights]
        for source in (piece for weight in weights for piece in weight.pieces()):
            check_dtype = check_packed if source.packing == MXFP4 else storage_dtype
            for name, shape in tensors_of(source).items():
                stored = self.tensor(name)
                check_dtype(stored)
                if stored.shape != shape or (
                    source.is_transposed and stored.name in self._quantized
                ):
                    raise CheckpointError(
                        f"tensor {name} has shape {list(stored.shape)}; "
                        f"config.json says {list(shape)}",
                        hint="Check that config.json belongs to this checkpoint.",
                    )
                used.add(stored.name)
        ignored = {"lm_head.weight"} if self.spec.is_tied else set()
        extra = sorted(
            name
            for name in set(self._tensors) - used - ignored
            if not name.endswith(_IGNORED_SUFFIXES) and not self._is_idle(name)
        )
        self.left_out = [name for name in extra if self._is_left_out(name)]
        extra = [name for name in extra if not self._is_left_out(name)]
        if extra:
            raise CheckpointError(
                f"{len(extra)} tensors have no place in a {self.spec.family} model, "
                f"such as {extra[0]}",
                hint="Leaving them out would change the answers. Merge adapters before converting.",
            )
