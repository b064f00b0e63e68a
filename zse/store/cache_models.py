"""The folder of models in the cache, file by file.

A model ``NAME.zse`` has a record ``NAME.json``, whose time is when the model was last asked for, a
lock ``NAME.lock`` while it is made, and what a stopped process left: ``.NAME.zse.DIGITS.part`` of a
download, ``NAME.zse.partial`` of a conversion. Names that zse does not give are not touched.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from zse.store.cache_kinds import MODELS, CacheItem
from zse.store.locks import is_locked, is_used, locked_if_free, remove_unused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_STEM = re.compile(r"[0-9a-f]{32}|.+-[a-z0-9]+-[0-9a-f]{20}")
"""What a download is called, and what a conversion is."""
_PART = re.compile(r"\.(.+)\.[0-9a-f]+\.part")
_PARTIAL = ".partial"
_NOTES = re.compile(r"(.+?)(?:\.zse)?(?:\.lock|\.json(?:\.new)?|\.partial\.json(?:\.tmp)?)")
"""Small files beside a model."""


def find_models(folder: Path) -> list[CacheItem]:
    """Return the models in a folder and what stopped processes left of some."""
    described = (_described(stem, files) for stem, files in _by_model(folder).items())
    return [model for model in described if model is not None]


def record_of(path: Path) -> Path:
    """Return the file that says where a model came from."""
    return path.with_name(f"{path.stem}.json")


def lock_of(path: Path) -> Path:
    """Return the lock of a model while it is made or removed."""
    return path.with_name(f"{path.stem}.lock")


def is_model_used(path: Path) -> bool:
    """Whether a process makes a model, holds it, or has it open."""
    if is_locked(lock_of(path)):
        return True
    for file in (path, *_downloads_of(path)):
        with contextlib.suppress(OSError):
            if is_used(file):
                return True
    return False


def remove_model(path: Path) -> bool:
    """Remove a model and all that belongs to it, unless it is used; tell whether it went.

    Raises:
        OSError: It cannot be removed.
    """
    with locked_if_free(lock_of(path)) as is_free:
        if not is_free:
            return False
        for file in (*_downloads_of(path), path):
            with contextlib.suppress(FileNotFoundError):
                if not remove_unused(file):
                    return False
        for file in _by_model(path.parent).get(path.stem, ()):
            if file != lock_of(path):  # the last to go, by whoever holds it
                file.unlink(missing_ok=True)
    return True


def remove_left_notes(folder: Path) -> None:
    """Remove records and locks of models that are not there, unless somebody is about to make one.

    Raises:
        OSError: One cannot be removed.
    """
    there = {model.path.stem for model in find_models(folder)}
    for stem in _by_model(folder).keys() - there:
        remove_model(folder / f"{stem}.zse")


def _downloads_of(path: Path) -> list[Path]:
    """Return the unfinished downloads of a model, some of which may be under way."""
    files = _by_model(path.parent).get(path.stem, ())
    return [file for file in files if _PART.fullmatch(file.name)]


def _by_model(folder: Path) -> dict[str, list[Path]]:
    """Return the files in a folder by the stem of the model that they belong to."""
    found: dict[str, list[Path]] = defaultdict(list)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.iterdir()):
            stem = _stem_of(path)
            if _STEM.fullmatch(stem):
                found[stem].append(path)
    return found


def _stem_of(path: Path) -> str:
    match = _NOTES.fullmatch(path.name)
    return match[1] if match else _whole(path).stem


def _whole(path: Path) -> Path:
    """Return the model that a file is, or is to become."""
    match = _PART.fullmatch(path.name)
    return path.with_name(match[1] if match else path.name.removesuffix(_PARTIAL))


def _described(stem: str, files: Iterable[Path]) -> CacheItem | None:
    """Return what the files of one model are; None when there are only notes."""
    facts = {}
    for path in files:
        with contextlib.suppress(OSError):
            facts[path] = path.stat()
    data = {path: found for path, found in facts.items() if not _NOTES.fullmatch(path.name)}
    if not data:
        return None
    path = _whole(next(iter(data)))
    is_whole = path in data
    record = record_of(path)
    used = [facts[record]] if is_whole and record in facts else facts.values()
    return CacheItem(
        kind=MODELS.name,
        name=_recorded_origin(record) or stem,
        path=path,
        size_bytes=sum(found.st_size for found in data.values()),
        used_seconds=max(found.st_mtime for found in used),
        is_whole=is_whole,
    )


def _recorded_origin(record: Path) -> str:
    try:
        return str(json.loads(record.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
