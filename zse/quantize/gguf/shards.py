"""The files of a GGUF model that was split: ``NAME-00001-of-00003.gguf`` and its neighbours.

The first has the settings; each says which it is and how many tensors there are in all.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import CheckpointError
from zse.quantize.gguf.header import GgufHeader, GgufTensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MOST_SHARDS = 1000


def shards_of(path: Path) -> tuple[Path, ...]:
    """Return the files of a model in order, by the name of any of them; most models are one file.

    Raises:
        CheckpointError: One of them is missing.
    """
    match = _NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= _MOST_SHARDS:
        return (path,)
    shards = tuple(path.with_name(name) for name in shard_names(path.name))
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise CheckpointError(
            f"{len(missing)} of {len(shards)} files of {match[1]} are missing in {path.parent}: "
            + ", ".join(missing[:3]),
            hint="Put all files of a split model into one folder.",
        )
    return shards


def shard_names(name: str) -> tuple[str, ...]:
    """Return the names of all files of a model, by that of any of them."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= _MOST_SHARDS:
        return (name,)
    return tuple(
        f"{match[1]}-{number:05d}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)
    )


def joined(headers: Sequence[GgufHeader], paths: Sequence[Path]) -> GgufHeader:
    """Return one header for all files of a model.

    Raises:
        CheckpointError: They are no files of one model, in this order.
    """
    first, count = headers[0].settings, len(headers)
    told = first.get("split.count", 0)
    if told != count and (told or count > 1):
        raise CheckpointError(
            f"{paths[0]} is one of {str(told)[:50]} files of a model, of which {count} are there "
            "under names such as NAME-00001-of-00002.gguf",
            hint="Keep the names that the files had, and put them into one folder.",
        )
    tensors: dict[str, GgufTensor] = {}
    for index, (header, path) in enumerate(zip(headers, paths, strict=True)):
        _check_number(header, told, index, path)
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name[:100]!r} is in both {paths[tensors[name].shard].name} and "
                    f"{path.name}"
                )
            tensors[name] = replace(tensor, shard=index)
    expected = first.get("split.tensors.count", len(tensors)) if count > 1 else len(tensors)
    if expected != len(tensors):
        raise CheckpointError(
            f"{paths[0]} says that its model has {str(expected)[:50]} tensors; its files hold "
            f"{len(tensors)}",
            hint="Download all files again: they are not of one model.",
        )
    return GgufHeader(settings=first, tensors=tensors)


def _check_number(header: GgufHeader, told: object, index: int, path: Path) -> None:
    number, count = header.settings.get("split.no", 0), header.settings.get("split.count", 0)
    if number != index or count != told:
        raise CheckpointError(
            f"{path} says that it is file {str(number)[:50]} of {str(count)[:50]}, counted from 0; "
            f"by its name it is file {index} of {str(told)[:50]}",
            hint="Download it again under the name that it had.",
        )
