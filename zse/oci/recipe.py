"""Recipes: ``images/<name>/image.toml`` and the lock files beside it.

A recipe and its locks decide every byte of an image except the model and the code. Locks name
files and hashes but no host, so that the same image comes out behind any mirror.
"""

from __future__ import annotations

import tomllib
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zse
from zse.errors import NotFoundError
from zse.oci.errors import BadReferenceError, LockError
from zse.records import record
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = Path(zse.__file__).parent
_ROOTS = (_PACKAGE / "images", _PACKAGE.parent / "images")


@record
class Healthcheck:
    """The image's health check; times in seconds."""

    test: tuple[str, ...]
    interval_seconds: int = 30
    timeout_seconds: int = 5
    start_period_seconds: int = 0
    retries: int = 3


@record
class WheelRecipe:
    """Python dependencies: ``name==version`` each, what to leave out, and a spare index."""

    requirements: tuple[str, ...] = ()
    platforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Requirements of one platform only: ``linux/arm64`` -> ``name==version`` each."""
    prune: tuple[str, ...] = ()
    extra_index: str = ""


@record
class DebianRecipe:
    """Base packages: roots to resolve, packages never taken, and paths to leave out."""

    suite: str = "bookworm"
    architecture: str = "amd64"
    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prune: tuple[str, ...] = ()


@record
class KernelRecipe:
    """Kernels that the image carries, compiled beforehand."""

    gpu: tuple[str, ...] = ()
    """Architectures, by name, that it has a pack for."""
    cpu: bool = False
    """Whether it has the libraries of its own platform's processors."""


@record
class Recipe:
    """One image, as data."""

    name: str
    folder: Path
    platform: str = "linux/amd64"
    platforms: tuple[str, ...] = ("linux/amd64",)
    """What it can be built for; the first is built when nothing is said."""
    python: str = "3.11"
    base: str = "debian"
    entrypoint: tuple[str, ...]
    command: tuple[str, ...] = ()
    """Arguments of the entry point that a user's own replace."""
    max_size: str = ""
    """The image without its model may not be larger, as stored: ``250MB``."""
    user: str = "65532:65532"
    port: int = 8000
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    code_exclude: tuple[str, ...] = ()
    wheels: WheelRecipe = WheelRecipe()
    debian: DebianRecipe = DebianRecipe()
    kernels: KernelRecipe = KernelRecipe()

    def for_platform(self, platform: str) -> Recipe:
        """Return the recipe as it is for one platform.

        Raises:
            BadReferenceError: The recipe is not made for it.
        """
        if platform not in self.platforms:
            raise BadReferenceError(
                f"the recipe {self.name} is not made for {platform}",
                hint=f"It is made for {', '.join(self.platforms)}.",
            )
        debian = replace(self.debian, architecture=platform.partition("/")[2])
        return replace(self, platform=platform, debian=debian)

    @property
    def architecture(self) -> str:
        """The platform's second word, ``amd64``; Debian calls it by the same name."""
        return self.platform.partition("/")[2]

    @property
    def requirements(self) -> tuple[str, ...]:
        return (*self.wheels.requirements, *self.wheels.platforms.get(self.platform, ()))


def recipe_names() -> list[str]:
    return sorted({path.parent.name for root in _ROOTS for path in root.glob("*/image.toml")})


def recipe_folder(name: str) -> Path:
    """Find the folder of a recipe: in the installed package, else beside it in a checkout.

    Raises:
        NotFoundError: There is no such recipe.
    """
    for root in _ROOTS:
        if name in recipe_names() and (root / name / "image.toml").is_file():
            return root / name
    raise NotFoundError(
        f"there is no image recipe named {name!r}",
        hint=f"Known recipes: {', '.join(recipe_names())}.",
    )


def load_recipe(folder: Path) -> Recipe:
    """Read ``image.toml`` of a folder.

    Raises:
        NotFoundError: The folder has no recipe.
        LockError: The recipe cannot be parsed or has an unknown or missing key.
    """
    path = folder / "image.toml"
    data = _load_toml(path)
    try:
        code = data.pop("code", {})
        check, wheels = data.pop("healthcheck", None), data.pop("wheels", {})
        return Recipe(
            folder=folder,
            code_exclude=tuple(code.get("exclude", ())),
            healthcheck=Healthcheck(**_tuples(check)) if check else None,
            wheels=WheelRecipe(platforms=_tuples(wheels.pop("platforms", {})), **_tuples(wheels)),
            debian=DebianRecipe(**_tuples(data.pop("debian", {}))),
            kernels=KernelRecipe(**_tuples(data.pop("kernels", {}))),
            platform=next(iter(data.get("platforms", ())), Recipe.platform),
            **_tuples(data),
        )
    except TypeError as error:
        raise LockError(f"{path} is not a recipe: {error}", hint="Compare images/cpu.") from error


def lock_name(kind: str, architecture: str) -> str:
    return f"{kind}.{architecture}.lock"


def load_lock(path: Path, table: str) -> list[dict[str, Any]]:
    """Read the entries of a lock file.

    Raises:
        LockError: The file is missing or cannot be parsed.
    """
    if not path.is_file():
        raise LockError(f"{path} does not exist")
    entries = _load_toml(path).get(table, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise LockError(f"{path} has no list named {table}")
    return entries


def write_lock(path: Path, table: str, entries: list[dict[str, str | int]]) -> None:
    """Write a lock file, atomically, with the entries in the order given."""
    lines = ["# Written by `zse build-image --update-lock`. Do not edit.\n"]
    for entry in entries:
        lines.append(f"\n[[{table}]]\n")
        lines += [f"{key} = {_toml_value(value)}\n" for key, value in entry.items()]
    with LocalWriter(path) as file:
        file.write("".join(lines).encode())


def _toml_value(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    if any(character in value for character in '"\\\n'):
        raise LockError(f"{value!r} cannot stand in a lock file")
    return f'"{value}"'


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist") from None
    except tomllib.TOMLDecodeError as error:
        raise LockError(f"{path} is not valid TOML: {error}") from error


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
