"""Nothing of a user's is replaced in silence: one rule for whatever writes a file with a name.

It is asked before any work starts. What a caller may replace is what it says with ``force``; what
it reads is never replaced.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.store.base import Transfer
from zse.store.checksum import Checksum
from zse.store.copying import read_digests
from zse.store.location import parse_location
from zse.store.transfer import open_store

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from zse.settings import Settings
    from zse.store.base import Progress, Store
    from zse.store.location import Location


class WouldReplaceError(UsageError):
    """An output would replace something that is there already."""

    default_hint = "Name another output, or replace it with --force (force=True in Python)."


def check_output(
    out: str | Path | Location,
    settings: Settings,
    *,
    force: bool,
    inputs: Iterable[Path] = (),
    folder: Path | None = None,
) -> None:
    """Refuse an output that would replace something.

    Args:
        force: What is there may be replaced, and the output may lie inside ``folder``.
        inputs: Files that are read; none of them is ever replaced.

    Raises:
        WouldReplaceError: Something is there, or the output lies inside ``folder``.
        UsageError: The output is one of the inputs, or neither a file nor free.
        StoreError: The storage failed.
    """
    location = parse_location(out)
    if location.is_local:
        _check_path(location.path, inputs)
        is_taken = _status(location.path, follow=False) is not None
    else:
        is_taken = not force and open_store(location, settings).exists()
    if force:
        return
    if is_taken:
        raise WouldReplaceError(f"{location} exists already")
    if folder is not None and location.is_local and _is_inside(location.path, folder):
        raise WouldReplaceError(
            f"{location} lies inside the input, {folder}",
            hint="Write it somewhere else, or add --force (force=True in Python).",
        )


def existing_copy(
    source: Store,
    target: Store,
    *,
    force: bool,
    progress: Progress | None = None,
    sha256: str | None = None,
) -> Transfer | None:
    """Say whether a copy is needed: None when it is, else what a copy would have reported.

    Args:
        progress: Called while a file that may be the same is read.
        sha256: The digest that the caller knows of the source.

    Raises:
        WouldReplaceError: The target is there and holds other bytes, or cannot be compared.
        NotFoundError: The source does not exist.
        StoreError: The storage failed.
    """
    if target.location.is_local:
        _check_path(target.location.path, ())
    if source.location.is_local:
        source.size()  # a file that is not there is an error, whatever the target is
    if force or not target.exists():
        return None
    known = Checksum(algorithm="sha256", value=sha256) if sha256 else None
    same = _compared(source, target, known, progress)
    if same is None:
        raise WouldReplaceError(f"{target.location} exists already and is not {source.location}")
    return same


def _compared(
    source: Store, target: Store, known: Checksum | None, progress: Progress | None
) -> Transfer | None:
    """Return what a copy would have reported if both are known to hold the same bytes."""
    size_bytes = source.size()
    if size_bytes != target.size():
        return None
    known = known or source.checksum() or target.checksum()
    if known is None and source.location.is_local and target.location.is_local:
        known = read_digests(source, progress=progress).found()
    if known is None:
        return None
    here = target if target.location.is_local else source
    hashing = read_digests(here, known, progress)
    if not hashing.is_as_expected():
        return None
    return Transfer(
        size_bytes=size_bytes, sha256=hashing.sha256(), verified=True, resumed_bytes=size_bytes
    )


def _check_path(path: Path, inputs: Iterable[Path]) -> None:
    found = _status(path)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(
            f"{path} is not an ordinary file", hint="Name a file; a rename would replace it."
        )
    for item in inputs:
        own = _status(item)
        if own is not None and (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino):
            raise UsageError(
                f"{path} is one of the files that are read", hint="Name another output."
            )


def _status(path: Path, *, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())
