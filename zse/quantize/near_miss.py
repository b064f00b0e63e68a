"""What is not a checkpoint but close to one: said by its name, with the step that leads on.

An adapter, a trainer's output with checkpoints inside, a GGUF file, a lone weights file, a file
that was converted already.
"""

from __future__ import annotations

import json
import re
from shlex import quote
from typing import TYPE_CHECKING

from zse.errors import CheckpointError, NotFoundError, UsageError, ZSEError
from zse.format.errors import GGUF_HINT
from zse.models.resolve import SUFFIX
from zse.printable import printable

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from zse.store import Location

ADAPTER = "adapter_config.json"
_CONFIG = "config.json"
_GGUF = ".gguf"
_STEP = re.compile(r"checkpoint-(\d+)")
_MAX_CONFIG_BYTES = 1 << 20
_MAX_NAME = 200


class AdapterError(CheckpointError):
    """A folder holds an adapter, which is a difference to a model and no model."""


def near_checkpoint(folder: Path) -> ZSEError | None:
    """Return what a folder that lacks its configuration or weights is, if it is known."""
    names = sorted(path.name for path in folder.iterdir())
    if (known := near_listing(str(folder), names, base=_base_of_adapter(folder))) is not None:
        return known
    inside = [name for name in names if _holds_checkpoint(folder / name)]
    if inside:
        steps = [(int(step[1]), name) for name in inside if (step := _STEP.fullmatch(name))]
        best = quote(str(folder / (max(steps)[1] if steps else inside[0])))
        newest = "the newest" if steps else "the first"
        return NotFoundError(
            f"{folder} is no checkpoint, but holds {len(inside)} inside: {', '.join(inside[:3])}",
            hint=f"Convert one of them, such as {newest}: zse convert {best} -o model.zse",
        )
    if models := [name for name in names if name.endswith(SUFFIX)]:
        return UsageError(
            f"{folder} is no checkpoint, but holds {models[0]}, which is converted already",
            hint=f"Serve it: zse serve {quote(str(folder / models[0]))}",
        )
    return None


def near_listing(where: str, names: Collection[str], *, base: str = "") -> ZSEError | None:
    """Return what the names of a folder's files say that it is, when it is no checkpoint."""
    if ADAPTER in names:
        whole, own = quote(base) if base else "BASE", quote(where)
        return AdapterError(
            f"{where} is an adapter (LoRA) of {base or 'a base model'}, not a whole model",
            hint=f"Merge it into its base: zse convert {whole} --merge-lora {own} -o model.zse\n"
            f"or serve it beside its base: zse serve {whole} --lora NAME={own}",
        )
    if any(name.endswith(_GGUF) for name in names):
        return CheckpointError(
            f"{where} holds GGUF, llama.cpp's format, and no safetensors weights", hint=GGUF_HINT
        )
    return None


def near_object(location: Location) -> UsageError:
    """Return what one object is that was given for a checkpoint folder, by its name."""
    return _model_file(location) or UsageError(
        f"{location} is one object; a conversion starts from a checkpoint folder",
        hint="Name a folder of this machine, a repository (hf://OWNER/NAME) or s3://BUCKET/FOLDER/.",
    )


def near_file(path: Path) -> ZSEError:
    """Return what a file that was given for a checkpoint folder is."""
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(4)
    if (known := _model_file(path, start)) is not None:
        return known
    if (path.parent / _CONFIG).is_file():
        return UsageError(
            f"{path} is one file of a checkpoint; a conversion reads the whole folder",
            hint=f"Name the folder: zse convert {quote(str(path.parent))} -o model.zse",
        )
    return UsageError(
        f"{path} is a file; a conversion starts from a checkpoint folder",
        hint="Name the folder that holds config.json, a hub id (owner/name), or tiny.",
    )


def _model_file(where: Path | Location, start: bytes = b"") -> UsageError | None:
    """Return what a file is, by its name and first bytes, if it holds a whole model."""
    if where.name.endswith(SUFFIX) or start == b"ZSE\0":
        return UsageError(
            f"{where} is converted already",
            hint=f"Serve it: zse serve {quote(str(where))}. "
            "For another scheme convert its checkpoint again.",
        )
    if where.name.endswith(_GGUF) or start == b"GGUF":
        return UsageError(f"{where} is GGUF, llama.cpp's format", hint=GGUF_HINT)
    return None


def _holds_checkpoint(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() or (folder / ADAPTER).is_file()


def _base_of_adapter(folder: Path) -> str:
    path = folder / ADAPTER
    if not path.is_file() or path.stat().st_size > _MAX_CONFIG_BYTES:
        return ""
    try:
        base = json.loads(path.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return printable(str(base)[:_MAX_NAME])
