"""The wheels of an image: resolved once into a lock file, then fetched by hash.

pip does the fetching, so indexes, mirrors, proxies and credentials are what the user has set up
for pip. It never installs, never builds, and takes wheels of the image's platform only.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import DiskFullError, MissingDependencyError
from zse.oci.errors import ImageRule, LockError
from zse.oci.python.secrets import Secrets
from zse.oci.recipe import Recipe, load_lock, lock_name, write_lock
from zse.records import record
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# pip compares tags literally, so every older tag that the image's libc satisfies is spelled out.
_PLATFORMS = ("manylinux_2_31", "manylinux_2_28", "manylinux_2_17", "manylinux2014",
              "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1")  # fmt: skip
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
LOCK_KIND = "wheels"


@record
class LockedWheel:
    """One line of the lock: which file, and what it must hash to."""

    name: str
    version: str
    file: str
    sha256: str


def read_wheel_lock(folder: Path, recipe: Recipe) -> list[LockedWheel]:
    """Read the lock and check that it answers the recipe's requirements.

    Raises:
        LockError: The lock is missing, malformed or made for other requirements.
    """
    path = folder / lock_name(LOCK_KIND, recipe.architecture)
    try:
        wheels = [LockedWheel(**entry) for entry in load_lock(path, "wheel")]
    except TypeError as error:
        raise LockError(f"{path}: {error}") from error
    locked = {f"{canonical_name(wheel.name)}=={wheel.version}" for wheel in wheels}
    wanted = {_canonical_requirement(text) for text in recipe.requirements}
    if locked != wanted:
        changed = ", ".join(sorted(locked ^ wanted))
        raise LockError(f"{path} does not match image.toml: {changed}")
    return wheels


def update_wheel_lock(
    recipe: Recipe, folder: Path, cache: Path, secrets: Secrets | None = None
) -> list[LockedWheel]:
    """Fetch the wheels that the recipe names and write what they are into the lock."""
    wheels = []
    with tempfile.TemporaryDirectory(dir=_made(cache)) as folder_name:
        scratch = Path(folder_name)
        _download(recipe, recipe.requirements, scratch, secrets, hashes=False)
        for file in scratch.glob("*.whl"):
            project, version = file.name.split("-")[:2]
            digest = sha256_of(file)
            _keep(file, cache / digest / file.name)
            name = canonical_name(project)
            wheels.append(LockedWheel(name=name, version=version, file=file.name, sha256=digest))
    wheels.sort(key=lambda wheel: wheel.name)
    entries: list[dict[str, str | int]] = [dict(asdict(wheel)) for wheel in wheels]
    write_lock(folder / lock_name(LOCK_KIND, recipe.architecture), "wheel", entries)
    return wheels


def fetch_wheels(
    recipe: Recipe,
    wheels: Sequence[LockedWheel],
    cache: Path,
    secrets: Secrets | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Return the locked wheels as local files, fetching the ones not yet in the cache.

    Raises:
        ImageError: pip could not find a wheel, or what it found has another hash.
        MissingDependencyError: pip is not installed beside this Python.
    """
    paths = {wheel: cache / wheel.sha256 / wheel.file for wheel in wheels}
    missing = [wheel for wheel, path in paths.items() if not path.is_file()]
    if missing:
        report(f"fetching {len(missing)} Python packages with pip")
        with tempfile.TemporaryDirectory(dir=_made(cache)) as name:
            scratch = Path(name)
            lines = [f"{w.name}=={w.version} --hash=sha256:{w.sha256}" for w in missing]
            _download(recipe, lines, scratch, secrets, hashes=True)
            for wheel in missing:
                file = scratch / wheel.file
                if not file.is_file() or sha256_of(file) != wheel.sha256:
                    raise ImageRule.WHEEL(f"pip did not fetch {wheel.file} with the locked SHA-256")
                _keep(file, paths[wheel])
    return list(paths.values())


def canonical_name(name: str) -> str:
    """Write a project name the way indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _canonical_requirement(text: str) -> str:
    name, _, version = text.partition("==")
    if not version:
        raise LockError(f"requirement {text!r} has no ==version", hint="Pin it in image.toml.")
    return f"{canonical_name(name)}=={version}"


def _download(
    recipe: Recipe, lines: Sequence[str], target: Path, secrets: Secrets | None, *, hashes: bool
) -> None:
    """Ask pip as it is configured; only if that fails, ask again with the recipe's spare index."""
    requirements = target / "requirements.txt"
    requirements.write_text("\n".join(lines) + "\n")
    command = _pip_command(recipe, requirements, target, hashes=hashes)
    known = secrets or Secrets()
    first = _run_pip(command, known)
    if first.returncode == 0:
        return
    said = known.redact(first.stderr)
    if "No space left on device" in said:
        raise DiskFullError(
            f"no space left in {target.parent} or {tempfile.gettempdir()}, where pip keeps what it "
            "is fetching",
            hint="Make room there, or set ZSE_CACHE_DIR and TMPDIR to folders on a larger disk.",
        )
    if recipe.wheels.extra_index:
        second = _run_pip([*command, "--extra-index-url", recipe.wheels.extra_index], known)
        if second.returncode == 0:
            return
    if "No module named pip" in first.stderr:
        raise MissingDependencyError(
            f"{sys.executable} has no pip", hint=f"Run {sys.executable} -m ensurepip."
        )
    words = [line for line in said.splitlines() if line.startswith("ERROR")]
    raise ImageRule.WHEEL(
        f"pip could not fetch the image's wheels: {' '.join(words[:3]) or said[-400:]}",
        hint="Check pip's index settings (pip config list), or run --update-lock.",
    )


def _pip_command(recipe: Recipe, requirements: Path, target: Path, *, hashes: bool) -> list[str]:
    machine = _MACHINES[recipe.platform]
    tag = f"cp{recipe.python.replace('.', '')}"
    platforms = [f"--platform={platform}_{machine}" for platform in _PLATFORMS]
    abis = [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
        "--disable-pip-version-check", "--only-binary=:all:", "--implementation=cp",
        f"--python-version={recipe.python}", *platforms, *abis,
        *(["--require-hashes"] if hashes else []), "-d", str(target), "-r", str(requirements),
    ]  # fmt: skip


def _run_pip(command: list[str], secrets: Secrets) -> subprocess.CompletedProcess[str]:
    environment = subprocess_environment(**secrets.pip_variables())
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _keep(file: Path, target: Path) -> None:
    if not target.exists():
        _made(target.parent)
        shutil.move(file, target)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
