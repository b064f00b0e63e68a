"""Reads an adapter of PEFT: a folder with adapter_config.json and adapter_model.safetensors.

All that can be wrong is looked at before a number is read, and nothing is kept of an adapter that
is refused. The folder may be hostile: only regular files are opened, within bounds, and no pickle.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from zse.backends.adapters import AdapterWeights, LowRank, PlainMatrix
from zse.errors import CheckpointError, LoRAError, NotFoundError, RefusedError
from zse.format.safetensors import StoredTensor, read_exactly, read_header
from zse.format.schemes import Scheme
from zse.models.lora.config import LoRAConfig, parse_config
from zse.models.lora.modules import module_of
from zse.models.lora.row_places import reordered_rows
from zse.models.lora.stacks import StackPlace, layer_of, members_of, stack_of
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from zse.models.lora.modules import ModulePlace

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PICKLE_NAME = "adapter_model.bin"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 24
_SCHEMES = {"F32": Scheme.FP32, "F16": Scheme.FP16, "BF16": Scheme.BF16}
_MATRIX = re.compile(r"(.+)\.lora_([AB])(?:\.default)?\.weight", re.ASCII)


@record
class _Pair:
    """The two matrices of one module, as the file has them."""

    module: str
    place: ModulePlace | StackPlace
    down: StoredTensor
    """[rank, inputs]."""
    up: StoredTensor
    """[outputs, rank]."""


@record
class _Known:
    """What of a model an adapter may be for."""

    modules: Mapping[str, ModulePlace]
    stacks: Mapping[int, Sequence[StackPlace]]


def read_adapter(
    folder: Path,
    name: str,
    places: Mapping[str, ModulePlace],
    *,
    max_rank: int,
    stacks: Mapping[int, Sequence[StackPlace]] = MappingProxyType({}),
) -> AdapterWeights:
    """Return an adapter in the terms of a model whose modules are at ``places``.

    ``stacks`` are those of experts, by layer, where adapters of whole stacks are asked for.

    Raises:
        NotFoundError: The folder is none of an adapter.
        RefusedError: Its weights are stored as pickle.
        LoRAError: It is damaged, belongs to another model, or has what is not computed.
    """
    with _opened(folder / CONFIG_NAME) as (fd, size_bytes):
        if size_bytes > _MAX_CONFIG_BYTES:
            raise LoRAError(f"{folder / CONFIG_NAME} has {size_bytes} bytes")
        data = bytes(_read(fd, folder / CONFIG_NAME, 0, size_bytes))
    computed = ("target_parameters",) if stacks else ()
    where = str(folder / CONFIG_NAME)
    config = parse_config(data, where, max_rank=max_rank, computed=computed)
    path = folder / WEIGHTS_NAME
    if not path.exists() and (folder / _PICKLE_NAME).exists():
        raise RefusedError(
            f"the adapter in {folder} is stored as pickle, which can run code",
            hint="Save it again with PEFT's save_pretrained, as safetensors.",
        )
    with _opened(path) as (fd, size_bytes):
        try:
            tensors = read_header(fd, path, size_bytes, most_bytes=_MAX_HEADER_BYTES)
        except CheckpointError as error:
            raise LoRAError(error.message, hint=error.hint) from error
        pairs = _pairs(tensors, _Known(modules=places, stacks=stacks), config, str(path))
        parts: dict[str, list[LowRank]] = {}
        for pair in pairs:
            weight = pair.place.weight.name
            parts.setdefault(weight, []).extend(_low_ranks(fd, path, pair, config))
    whole = {weight: tuple(found) for weight, found in parts.items()}
    _check_overlaps(whole, str(path))
    return AdapterWeights(name=name, parts=whole)


def _pairs(
    tensors: dict[str, StoredTensor],
    known: _Known,
    config: LoRAConfig,
    where: str,
) -> list[_Pair]:
    """Put the tensors of a file together, each held against the model and the configuration."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        if (match := _MATRIX.fullmatch(name)) is None:
            raise LoRAError(
                f"{where} has a tensor {name[:200]!r}, which is no matrix of LoRA",
                hint="Whole modules, biases, embeddings and DoRA are not computed: merge the "
                "adapter with PEFT's merge_and_unload, and convert that.",
            )
        module = module_of(match[1], known.modules)
        if module not in known.modules and layer_of(module) not in known.stacks:
            raise LoRAError(
                f"{where} adapts {match[1][:200]!r}, which is no matrix of this model that an "
                "adapter is added to",
                hint="Check that it was trained on this model. Routers, embeddings, heads, and "
                "experts whose matrices are packed in the checkpoint take none.",
            )
        if match[2] in found.setdefault(module, {}):
            raise LoRAError(f"{where} has two matrices {match[2]} of {module}")
        found[module][match[2]] = tensor
    if not found:
        raise LoRAError(f"{where} has no tensors", hint="Save the adapter again.")
    return [
        _pair(module, both, known.modules[module], config, where)
        if module in known.modules
        else _pair_of_stack(module, both, known.stacks, config, where)
        for module, both in found.items()
    ]


def _pair(
    module: str,
    both: dict[str, StoredTensor],
    place: ModulePlace,
    config: LoRAConfig,
    where: str,
) -> _Pair:
    _check_both(module, both, where)
    rank = config.rank_of(module)
    source = place.source
    expected = {"A": (rank, source.columns), "B": (source.rows, rank)}
    for side, tensor in both.items():
        if tensor.shape != expected[side]:
            raise LoRAError(
                f"{where}: lora_{side} of {module} has shape {list(tensor.shape)}, expected "
                f"{list(expected[side])}",
                hint="Check that the adapter was trained on this model.",
            )
    return _Pair(module=module, place=place, down=both["A"], up=both["B"])


def _pair_of_stack(
    module: str,
    both: dict[str, StoredTensor],
    stacks: Mapping[int, Sequence[StackPlace]],
    config: LoRAConfig,
    where: str,
) -> _Pair:
    _check_both(module, both, where)
    rank = config.rank_of(re.sub(r"(\.base_layer)+$", "", module))
    place = stack_of(module, (both["A"].shape, both["B"].shape), rank, stacks)
    if place is None:
        raise LoRAError(
            f"{where}: the matrices of {module} have shapes {list(both['A'].shape)} and "
            f"{list(both['B'].shape)}, which are those of no experts of its layer with a rank of "
            f"{rank}",
            hint="Check that the adapter was trained on this model.",
        )
    return _Pair(module=module, place=place, down=both["A"], up=both["B"])


def _check_both(module: str, both: dict[str, StoredTensor], where: str) -> None:
    if len(both) < 2:
        raise LoRAError(f"{where} has one of the two matrices of {module}, lora_{min(both)}")
    for side, tensor in both.items():
        if tensor.dtype not in _SCHEMES:
            raise LoRAError(
                f"{where}: lora_{side} of {module} has dtype {tensor.dtype[:40]}, expected one of "
                f"{', '.join(_SCHEMES)}"
            )


def _low_ranks(fd: int, path: Path, pair: _Pair, config: LoRAConfig) -> Iterator[LowRank]:
    down, up = (_matrix(fd, path, tensor) for tensor in (pair.down, pair.up))
    scale = config.scale_of(pair.module) * pair.place.weight.factor
    if isinstance(pair.place, StackPlace):
        stack = LowRank(first_row=0, scale=scale, down=down, up=up)
        yield from members_of(stack, pair.place.members)
        return
    order = pair.place.source.order
    if order is not None:
        row_bytes = len(up.data) // up.rows
        up = PlainMatrix(
            data=reordered_rows(up.data, row_bytes, order),
            scheme=up.scheme,
            rows=up.rows,
            columns=up.columns,
        )
    yield LowRank(
        first_row=pair.place.first_row,
        scale=scale,
        down=down,
        up=up,
    )


def _check_overlaps(parts: Mapping[str, tuple[LowRank, ...]], where: str) -> None:
    """Refuse experts that are adapted one by one and as a whole stack, too."""
    for weight, found in parts.items():
        ordered = sorted(found, key=lambda part: part.first_row)
        for one, after in pairwise(ordered):
            if one.first_row + one.up.rows > after.first_row:
                raise LoRAError(
                    f"{where} adapts rows of {weight} twice, from row {after.first_row} on",
                    hint="Experts are adapted one by one or as whole stacks, not both.",
                )


def _matrix(fd: int, path: Path, tensor: StoredTensor) -> PlainMatrix:
    rows, columns = tensor.shape
    data = bytes(_read(fd, path, tensor.offset_bytes, tensor.length_bytes))
    return PlainMatrix(data=data, scheme=_SCHEMES[tensor.dtype], rows=rows, columns=columns)


def _read(fd: int, path: Path, offset_bytes: int, length_bytes: int) -> bytearray:
    try:
        return read_exactly(fd, path, offset_bytes, length_bytes)
    except CheckpointError as error:
        raise LoRAError(error.message, hint=error.hint) from error


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open a regular file; give its descriptor and its length in bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be opened: {error.strerror}",
            hint=f"An adapter is a folder with {CONFIG_NAME} and {WEIGHTS_NAME}, as PEFT saves it.",
        ) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise LoRAError(f"{path} is no regular file")
        yield fd, status.st_size
    finally:
        os.close(fd)
