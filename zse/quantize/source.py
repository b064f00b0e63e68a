"""From what the user calls a model to a checkpoint folder with a name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from zse.errors import NotFoundError, UsageError
from zse.models.builtin import BUILTIN_MODELS, builtin_checkpoint, is_builtin
from zse.quantize.hub import Hub, is_hub_id
from zse.records import record
from zse.settings import load_settings
from zse.store import parse_location

_WHOLE_DIGEST_BYTES = 64 * 1024 * 1024  # larger files are identified by size and time as well


@record
class Source:
    """A checkpoint on this machine."""

    folder: Path
    name: str
    """What provenance records: the built-in's name, the hub id, or the folder's own name."""
    revision: str = ""
    """The hub's commit; empty for local folders."""


def resolve_source(model: str | Path, *, revision: str | None = None) -> Source:
    """Find a model: a built-in's name, a local folder, or a hub id (which is downloaded).

    A hub id may be written ``owner/name`` or ``hf://owner/name[@revision]``.

    Raises:
        NotFoundError: It is none of these.
        UsageError: It is a file, or a revision was given for something that has none.
        HubError: The hub refused or cannot be reached.
    """
    text = str(model)
    if text.startswith("hf://"):
        text, revision = _from_address(text, revision)
    path = Path(text).expanduser()
    if is_builtin(text):
        source = Source(folder=builtin_checkpoint(text), name=text)
    elif path.is_dir():
        source = Source(folder=path, name=path.resolve().name)
    elif path.exists():
        raise UsageError(
            f"{text} is a file; a conversion starts from a checkpoint folder",
            hint="Name the folder that holds config.json, a hub id such as owner/name, or tiny.",
        )
    elif is_hub_id(text):
        token = load_settings().hf_token or None
        snapshot = Hub(token=token).fetch_snapshot(text, revision)
        return Source(folder=snapshot.folder, name=text, revision=snapshot.revision)
    else:
        raise NotFoundError(
            f"there is no model {text!r}",
            hint="Name a checkpoint folder, a hub id such as owner/name, or a built-in: "
            f"{', '.join(sorted(BUILTIN_MODELS))}.",
        )
    if revision is not None:
        raise UsageError(
            f"{text} has no revisions, but revision {revision!r} was asked for",
            hint="Revisions belong to hub ids.",
        )
    return source


def _from_address(url: str, revision: str | None) -> tuple[str, str | None]:
    """Return the hub id and the revision of ``hf://owner/name[@revision]``."""
    location = parse_location(url)
    if location.key:
        raise UsageError(
            f"{url} names one file; a conversion starts from a whole repository",
            hint=f"Write hf://{location.repository}.",
        )
    if revision and location.revision and revision != location.revision:
        raise UsageError(
            f"{url} and revision {revision!r} contradict each other", hint="Give one of the two."
        )
    return location.repository, revision or location.revision or None


def fingerprint(folder: Path) -> str:
    """Return a SHA-256 that changes when the checkpoint does.

    Small files count with their content; large ones with size, time and first bytes (a
    safetensors header), so that a cache look-up does not read gigabytes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".safetensors", ".jinja") or not path.is_file():
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
