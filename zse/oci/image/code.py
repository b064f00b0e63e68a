"""The layer that holds zse itself, taken from the installed package."""

from __future__ import annotations

import fnmatch
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import zse
from zse.install import IMAGE_FOLDER
from zse.oci.layout.tar import Entry, file_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.oci.recipe import Recipe

APPLICATION = IMAGE_FOLDER
_NATIVE = "kernels/native/lib/"
"""The package's folder of compiled kernels for processors, one folder an architecture."""
_LOADER = "device/loader/lib/"
"""Its folder of what copies a file to a GPU, likewise."""
_ADDED_BY_WHEEL = ("images", "terraform")
"""Folders that a wheel puts into the package and a checkout has beside it: what only the tools
read, so that an image is the same whichever of the two builds it."""


def code_entries(recipe: Recipe, *, package: Path | None = None) -> Iterator[Entry]:
    """Yield the files of a package, the running one when not given, and the recipe's own files."""
    root = package or Path(zse.__file__).parent
    for path in sorted(root.rglob("*")):
        inner = path.relative_to(root).as_posix()
        if path.is_file() and _is_wanted(inner, recipe.code_exclude) and _runs(inner, recipe):
            yield file_of_bytes(f"{APPLICATION}/{root.name}/{inner}", path.read_bytes())
    for target, source in recipe.files.items():
        yield file_of_bytes(target, (recipe.folder / source).read_bytes())


def entries_digest(entries: Sequence[Entry]) -> str:
    """Return a hash of paths, modes and contents, to find a built layer again."""
    total = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        content = hashlib.sha256(entry.read()).hexdigest()
        total.update(f"{entry.path}\0{entry.mode:o}\0{entry.target}\0{content}\n".encode())
    return total.hexdigest()


def _runs(inner: str, recipe: Recipe) -> bool:
    """Whether a file is for the processors of the image, as all are that are not compiled."""
    wanted = {_NATIVE: recipe.kernels.cpu, _LOADER: bool(recipe.kernels.gpu)}
    for folder, is_wanted in wanted.items():
        if inner.startswith(folder):
            own = f"{folder}{recipe.architecture}/"
            return is_wanted and inner.startswith(own) and inner.endswith(".so")
    return True


def _is_wanted(inner: str, exclude: Sequence[str]) -> bool:
    parts = inner.split("/")
    if "__pycache__" in parts or any(part.startswith(".") for part in parts):
        return False
    if parts[0] in _ADDED_BY_WHEEL:
        return False
    return not any(fnmatch.fnmatchcase(inner, rule) for rule in exclude)
