"""Tells which model an argument MODEL names: a file, a folder, an address, a hub id, a built-in.

A built-in's name, a .zse file, a checkpoint folder or a GGUF file of this machine, a file behind an
address, or a repository of the hub. Nothing is fetched or converted here.
"""

from __future__ import annotations

import difflib
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, UsageError
from zse.models.builtin import BUILTIN_MODELS
from zse.records import record
from zse.store.location import Location, is_hub_id, parse_location

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".zse"
_OCI = "oci://"
GGUF_SUFFIX = ".gguf"
_MAX_NEIGHBOURS = 2000
"""Names of a folder that are compared with one that is missing."""


@record
class Builtin:
    """A model that ships inside the package."""

    name: str


@record
class LocalFile:
    """A file of this machine, which exists; its content was not looked at."""

    path: Path


@record
class GgufFile:
    """A file of this machine in llama.cpp's format, by its first bytes: a checkpoint in one."""

    path: Path


@record
class LocalFolder:
    """A folder of this machine, which exists: a checkpoint, if anything."""

    path: Path


@record
class RemoteFile:
    """One object behind s3://, hf:// or https://. Nobody asked whether it is there."""

    location: Location


@record
class RemoteGguf:
    """A GGUF file behind an address, by its name; of a model that was split any of its files."""

    location: Location


@record
class HubRepository:
    """A checkpoint on the hub. Nobody asked whether it is there."""

    repository: str
    """``owner/name``."""
    revision: str = ""
    """Branch, tag or commit; empty means the default branch."""


@record
class OciFile:
    """A .zse file in a registry, as an image. Nobody asked whether it is there."""

    reference: str
    """``oci://HOST/REPOSITORY[:TAG][@DIGEST]``."""


NamedModel = (
    Builtin | LocalFile | GgufFile | LocalFolder | RemoteFile | RemoteGguf | HubRepository | OciFile
)


def resolve_model(model: str | Path) -> NamedModel:
    """Return what a model's name means.

    Args:
        model: ``tiny``, a path, ``s3://bucket/key``, ``hf://owner/name[@revision][/file]``,
            ``https://host/file``, ``oci://host/repository:tag``, the page of a repository of the
            hub, ``owner/name``, or a GGUF file of one, ``owner/name/file.gguf``.

    Raises:
        UsageError: The address is malformed, or names a group of objects.
        RefusedError: The address is not encrypted, or carries a password.
        NotFoundError: It is a path to nothing, or a word that means nothing.
    """
    text = str(model)
    if text in BUILTIN_MODELS:
        return Builtin(name=text)
    if text.startswith(_OCI):
        return OciFile(reference=text)
    location = parse_location(text)
    if location.is_local:
        return _resolve_local(text, location.path)
    if location.scheme == "hf" and not location.key:
        return HubRepository(repository=location.repository, revision=location.revision)
    if location.is_prefix:
        raise UsageError(
            f"{location} names a folder, not a model",
            hint=f"See what is in it: zse ls {quote(str(location))}",
        )
    return _behind(location)


def _behind(location: Location) -> RemoteFile | RemoteGguf:
    if location.name.endswith(GGUF_SUFFIX):
        return RemoteGguf(location=location)
    return RemoteFile(location=location)


def is_gguf_file(path: str | Path) -> bool:
    """Whether a file begins as llama.cpp's do; False where none can be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the server's start imports no pathlib
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def not_a_file(named: LocalFolder | HubRepository | GgufFile | RemoteGguf) -> UsageError:
    """Return the error for a checkpoint where one .zse file is wanted."""
    if isinstance(named, HubRepository):
        what, model = "a repository of the hub", named.repository
    elif isinstance(named, RemoteGguf):
        what, model = "GGUF", str(named.location)
    elif isinstance(named, GgufFile):
        what, model = "GGUF", str(named.path)
    else:
        what, model = "a folder", str(named.path)
        for name in _names_in(named.path):
            if name.endswith(SUFFIX):
                return UsageError(
                    f"{model} is a folder, not a .zse file",
                    hint=f"Name a file in it: {named.path / name}",
                )
    return UsageError(
        f"{model} is {what}, not a .zse file",
        hint=f"Convert the checkpoint first: zse convert {quote(model)} -o model.zse",
    )


def _resolve_local(text: str, path: Path) -> NamedModel:
    if path.is_dir():
        return LocalFolder(path=path)
    if path.exists():
        return GgufFile(path=path) if is_gguf_file(path) else LocalFile(path=path)
    if _is_gguf_of_hub(text, path):
        return _behind(parse_location(f"hf://{text}"))
    if _is_path(text, path):
        hint = _hint_for_missing(path)
        if is_hub_id(text) and path.suffix != SUFFIX:
            hint += f" If the hub's repository is meant, write hf://{text}."
        raise NotFoundError(f"there is no file {path}", hint=hint)
    if is_hub_id(text):
        return HubRepository(repository=text)
    near = difflib.get_close_matches(text, [*BUILTIN_MODELS, *_names_in(path.parent)], 1)
    near = near or _known_like(text)
    forms = (
        "Name a .zse file, a checkpoint folder, a GGUF file, OWNER/NAME on the hub, or a built-in: "
    )
    raise NotFoundError(
        f"there is no model {text!r}",
        hint=f"Did you mean {near[0]}?" if near else f"{forms}{', '.join(sorted(BUILTIN_MODELS))}.",
    )


def _known_like(text: str) -> list[str]:
    """Return what the registry calls a model whose name was written shorter, or nearly."""
    from zse.models.registry import nearest_names  # a table that only a wrong name asks for

    return nearest_names(text)[:1]


def _is_gguf_of_hub(text: str, path: Path) -> bool:
    """Whether a name that is not there is that of a file in a repository: owner/name/file.gguf."""
    parts = text.split("/")
    if not text.endswith(GGUF_SUFFIX) or len(parts) < 3 or path.parent.is_dir():
        return False
    return is_hub_id("/".join(parts[:2])) and all(part not in ("", ".", "..") for part in parts)


def _is_path(text: str, path: Path) -> bool:
    """Whether a name that is not there was meant as a path, and not as ``owner/name``."""
    if text.startswith((".", "/", "~")) or text.endswith("/") or path.suffix == SUFFIX:
        return True
    return text.count("/") > 1 or ("/" in text and path.parent.is_dir())


def _hint_for_missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {folder} either: check the path."
    names = _names_in(folder)
    if near := difflib.get_close_matches(path.name, names, 1):
        return f"Did you mean {folder / near[0]}?"
    if models := [name for name in names if name.endswith(SUFFIX)]:
        return f"{folder.resolve()} holds {', '.join(models[:3])}{', ...' * (len(models) > 3)}."
    if path.suffix == SUFFIX:
        return f"Make it with: zse convert MODEL -o {quote(str(path))}"
    return "Check the path."


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in islice(folder.iterdir(), _MAX_NEIGHBOURS))
    except OSError:
        return []
