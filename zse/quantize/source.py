"""From what the user calls a model to a checkpoint folder with a name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.models.builtin import builtin_checkpoint
from zse.models.pooling import POOLING_SECTION
from zse.models.resolve import (
    GGUF_SUFFIX,
    SUFFIX,
    Builtin,
    GgufFile,
    HubRepository,
    LocalFile,
    LocalFolder,
    NamedModel,
    RemoteFile,
    RemoteGguf,
    resolve_model,
)
from zse.quantize.gguf.shards import shard_names, shards_of
from zse.quantize.hub import fetch_snapshot
from zse.quantize.near_miss import near_file, near_object
from zse.quantize.remote_folder import fetch_files, fetch_folder
from zse.records import record
from zse.store import parse_location

if TYPE_CHECKING:
    import tempfile
    from collections.abc import Callable, Sequence

    from zse.settings import Settings
    from zse.store import Location, Progress

_WHOLE_DIGEST_BYTES = 64 * 1024 * 1024  # larger files are identified by size and time as well


@record
class Source:
    """A checkpoint on this machine."""

    path: Path
    """A folder in Hugging Face form, or a GGUF file."""
    name: str
    """What provenance records: the built-in's name, the hub id, or the path's own name."""
    revision: str = ""
    """The hub's commit; empty for local folders."""
    temporary: tempfile.TemporaryDirectory[str] | None = None
    """The folder, where it was made for this conversion."""

    def close(self) -> None:
        """Remove the folder if it is temporary."""
        if self.temporary is not None:
            self.temporary.cleanup()

    @property
    def folder(self) -> Path | None:
        """Where nothing of ours is to be put; None where the checkpoint is one file."""
        return None if self.path.is_file() else self.path

    def files(self) -> list[Path]:
        """Return the files that a conversion may read; models that were made of them are none."""
        if self.path.is_file():
            return list(shards_of(self.path))
        return [path for path in self.path.iterdir() if path.suffix not in (SUFFIX, ".partial")]


def resolve_source(
    model: str | Path,
    settings: Settings,
    *,
    revision: str | None = None,
    check: Callable[[str, Sequence[str]], None] | None = None,
    progress: Progress | None = None,
) -> Source:
    """Find a model: a built-in, a local folder, a GGUF file, a hub id, a folder of object storage.

    A hub id may be written ``owner/name`` or ``hf://owner/name[@revision]``. A GGUF file behind an
    address is fetched into the cache, with all files of a model that was split. What is to be
    fetched is given to ``check``, as a name and its files' names, before any of it is.
    ``progress`` is called while files of object storage are fetched.

    Raises:
        NotFoundError: It is none of these.
        UsageError: It is a file or an object, or a revision was given for something that has none.
        HubError: The hub refused or cannot be reached.
    """
    location = parse_location(model)
    is_folder = location.scheme == "s3" and not location.name.endswith(GGUF_SUFFIX)
    named: NamedModel = RemoteFile(location=location) if is_folder else resolve_model(model)
    match named:
        case Builtin(name=name):
            source = Source(path=builtin_checkpoint(name), name=name)
        case LocalFolder(path=path):
            source = Source(path=path, name=path.resolve().name)
        case HubRepository(repository=repository, revision=own):
            if revision and own and revision != own:
                raise UsageError(
                    f"{repository}@{own} and revision {revision!r} contradict each other",
                    hint="Give one of the two.",
                )
            wanted, token = revision or own or None, settings.hub.token or None
            folder = fetch_snapshot(repository, wanted, token=token, check=check)
            return Source(path=folder, name=repository, revision=folder.name)
        case GgufFile(path=path):
            source = Source(path=path, name=path.resolve().stem)
        case RemoteGguf(location=location):
            links = fetch_files(beside(location), settings, progress=progress)
            path = Path(links.name) / location.name
            source = Source(path=path, name=path.stem, temporary=links)
        case LocalFile(path=path):
            raise near_file(path)
        case RemoteFile(location=location) if location.scheme != "s3":
            raise near_object(location)
        case _:
            links = fetch_folder(location, settings, check=check, progress=progress)
            name = location.name or location.bucket
            source = Source(path=Path(links.name), name=name, temporary=links)
    if revision is not None:
        raise UsageError(
            f"{model} has no revisions, but revision {revision!r} was asked for",
            hint="Revisions belong to hub ids.",
        )
    return source


def beside(location: Location) -> list[Location]:
    """Return where all files of a GGUF model are, by that of any of them."""
    names = shard_names(location.name)
    if len(names) == 1:
        return [location]
    return [parse_location(location.url.replace(location.name, name)) for name in names]


def fingerprint(checkpoint: Path) -> str:
    """Return a SHA-256 that changes when the checkpoint does: a folder, or a GGUF file.

    Small files count with their content; large ones with size, time and first bytes (a
    safetensors header), so that a cache look-up does not read gigabytes.
    """
    is_gguf = checkpoint.is_file()
    paths = shards_of(checkpoint) if is_gguf else sorted(checkpoint.iterdir())
    if not is_gguf and (checkpoint / POOLING_SECTION).is_file():
        paths = [*paths, checkpoint / POOLING_SECTION]
    digest = hashlib.sha256()
    for path in paths:
        if path.suffix not in (".json", ".safetensors", ".jinja") and not is_gguf:
            continue
        if not path.is_file():
            continue
        status = path.stat()
        facts: list[object] = [path.name, status.st_size]
        with path.open("rb") as file:
            if status.st_size <= _WHOLE_DIGEST_BYTES:
                facts.append(hashlib.file_digest(file, "sha256").hexdigest())
            else:
                head = hashlib.sha256(file.read(1 << 20)).hexdigest()
                facts += [status.st_mtime_ns, head]
        digest.update(json.dumps(facts).encode() + b"\n")
    return digest.hexdigest()
