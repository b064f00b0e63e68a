"""Where a converted file goes: looked at before any work, written here, brought there."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.quantize.report import stage
from zse.store import Location, open_store, open_writable, parse_location, put_file
from zse.store.cache_use import using
from zse.store.copying import read_digests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.quantize.report import ConversionProgress
    from zse.settings import Settings


def check_destination(out: str | Path, settings: Settings) -> Location:
    location = parse_location(out)
    if location.is_prefix or (location.is_local and location.path.is_dir()):
        raise UsageError(
            f"{location} is a folder; the output is one file",
            hint="Add a file name, such as model.zse.",
        )
    if location.name.endswith(".gguf"):
        raise UsageError(
            f"{location} is to be a .gguf file, but conversion writes .zse files",
            hint=f"Name it {location.name.removesuffix('.gguf')}.zse; zse writes no GGUF.",
        )
    if not location.is_local:
        open_writable(location, settings)  # what is wrong is better known now than afterwards
    return location


@contextmanager
def local_target(destination: Location, cache_dir: Path) -> Iterator[Path]:
    """Yield the local path to write; for S3, a staging file that is removed afterwards."""
    if destination.is_local:
        yield destination.path
        return
    # Named after the destination, so that a killed run can be resumed.
    key = hashlib.sha256(destination.url.encode()).hexdigest()[:24]
    with using(cache_dir, "uploads") as uploads:
        folder = uploads / key
        folder.mkdir(exist_ok=True)
        target = folder / "model.zse"
        try:
            yield target
        finally:
            target.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()


def deliver(
    target: Path,
    destination: Location,
    settings: Settings,
    notify: Callable[[ConversionProgress], None],
) -> str:
    """Bring a file that is written to where it belongs; return its SHA-256."""
    if destination.is_local:
        # The header is written last and hashed first, so the file is read again.
        return read_digests(
            open_store(target, settings), progress=stage(notify, "checksum")
        ).sha256()
    return put_file(target, destination, settings, progress=stage(notify, "upload")).sha256
