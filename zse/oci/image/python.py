"""The Python that compiles an image's byte code: the one of the image, never the builder's.

Byte code differs from one patch release of Python to the next, and it fits one minor version only.
So it comes from the Python that the recipe's Debian lock names, whatever Python runs the builder:
its few packages are unpacked into a folder that is thrown away, and it is started there through its
own loader and libraries, without root and without a container. Byte code does not depend on the
processor: for an image of another architecture the same release of Python is taken from a lock of
this machine's. Bases that others made are neither unpacked nor run.
"""

from __future__ import annotations

import platform
import sys
from functools import cached_property
from typing import TYPE_CHECKING

from zse.oci.debian.packages import SUITE_PYTHON, debian_entries, read_debian_lock
from zse.oci.errors import LockError
from zse.oci.image.options import scratch_folder
from zse.oci.image.unpack import unpack
from zse.oci.image.unpacked import UnpackedImage, unpacked
from zse.oci.layout.layer import Compression, write_layer
from zse.oci.layout.manifest import hex_of
from zse.oci.python.pyc import PycCompiler
from zse.oci.recipe import DebianRecipe, recipe_folder, recipe_names
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.oci.debian.index import Package
    from zse.oci.debian.packages import Archive
    from zse.oci.image.options import Build

_PACKAGES = (
    "python{}-minimal", "libpython{}-minimal", "libpython{}-stdlib", "libc6", "libexpat1", "zlib1g",
)  # fmt: skip
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def host_architecture() -> str:
    """Return this machine's architecture as images and Debian call it: ``amd64``."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


@record
class _Found:
    """A Python that runs here: its version, and what it is made of; or why there is none."""

    version: str = ""
    reason: str = ""
    debian: DebianRecipe = DebianRecipe()
    packages: tuple[Package, ...] = ()


class ImagePython:
    """Finds the image's Python in the locks, and unpacks it when the first source is compiled.

    Args:
        build: Of one platform; its locks are read when the version is first asked for. Its cache's
            folder must allow programs to run.
        archive: Gives access to a Debian mirror.
    """

    def __init__(self, build: Build, archive: Callable[[], Archive]) -> None:
        self._recipe, self._locks = build.recipe, build.locks
        self._build, self._archive = build, archive

    @property
    def version(self) -> str:
        """Its release, ``3.11.2``; empty when no byte code can be made here.

        Raises:
            LockError: The locks of the image's and this machine's architecture name different ones.
        """
        return self._found.version

    @property
    def reason(self) -> str:
        return self._found.reason

    def compiler(self) -> PycCompiler:
        """Return the compiler; its packages are fetched and unpacked when that is not done yet.

        Raises:
            ImageError: The packages cannot be had.
        """
        return PycCompiler(self._command)

    @cached_property
    def _found(self) -> _Found:
        wanted, reason = self._locked_version()
        if not wanted:
            return _Found(reason=reason)
        own = ""
        for folder in self._lock_folders():
            found = self._in_lock(folder)
            if found.version == wanted:
                return found
            own = own or (found.version if folder == self._locks else "")
        if own:
            raise LockError(
                f"the locks in {self._locks} name Python {wanted} for {self._recipe.architecture} "
                f"and {own} for {host_architecture()}, which compiles for it",
                hint="Run --update-lock with --platform linux/amd64,linux/arm64.",
            )
        return _Found(
            reason=f"no lock names Python {wanted} for this machine, which is {sys.platform} on "
            f"{host_architecture()}"
        )

    def _locked_version(self) -> tuple[str, str]:
        """Return the release that the image's own lock names, or why it names none."""
        name = _PACKAGES[0].format(self._recipe.python)
        try:
            packages = read_debian_lock(self._locks, self._debian(self._recipe.architecture, name))
        except LockError as error:
            return "", f"no Debian lock names a Python {self._recipe.python} ({error})"
        return _release(next(x.version for x in packages if x.name == name)), ""

    def _in_lock(self, folder: Path) -> _Found:
        """Return the Python that a folder's lock names for this machine; none when it lacks one."""
        names = [name.format(self._recipe.python) for name in _PACKAGES]
        debian = self._debian(host_architecture(), *names)
        try:
            locked = {package.name: package for package in read_debian_lock(folder, debian)}
        except LockError:
            return _Found()
        packages = tuple(locked[name] for name in names)
        return _Found(version=_release(packages[0].version), debian=debian, packages=packages)

    def _lock_folders(self) -> Iterator[Path]:
        """Yield the build's own locks, then those of other recipes: Python is the same in all."""
        if sys.platform == "linux":
            yield self._locks
            yield from (recipe_folder(name) for name in recipe_names())

    def _debian(self, architecture: str, *packages: str) -> DebianRecipe:
        suites = (suite for suite, python in SUITE_PYTHON.items() if python == self._recipe.python)
        return DebianRecipe(suite=next(suites, ""), architecture=architecture, packages=packages)

    @cached_property
    def _command(self) -> list[str]:
        """Unpack the packages; return how the Python in them is started."""
        folder = scratch_folder(self._build.stack, self._build.options)
        entries = debian_entries(self._archive(), self._found.packages, self._found.debian)
        layer = write_layer(entries, folder, compression=Compression.NONE)
        unpack([folder / hex_of(layer.digest)], folder / "rootfs")
        image = UnpackedImage(
            layout=folder, tag="", rootfs=folder / "rootfs", config={}, scratch=folder
        )
        return unpacked(image, [f"/usr/bin/python{self._recipe.python}"], {})


def _release(debian_version: str) -> str:
    """Return the release of Python in a Debian version: ``3.11.2-6+deb12u9`` -> ``3.11.2``."""
    return debian_version.rpartition(":")[2].partition("-")[0]
