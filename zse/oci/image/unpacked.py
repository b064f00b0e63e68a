"""An image on disk, and how it is started there with nothing but its own loader and Python."""

from __future__ import annotations

import shutil
from dataclasses import field
from typing import TYPE_CHECKING, Any

from zse.errors import ImageError, MissingDependencyError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ROOTS_PROGRAMS = "/usr/sbin:/sbin"


class RunnerError(ImageError):
    """A runner cannot start anything on this machine."""

    default_hint = "Run as root, or install runc or bubblewrap."


@record
class UnpackedImage:
    """An image on disk."""

    layout: Path
    tag: str
    rootfs: Path
    """Its layers, unpacked."""
    config: Mapping[str, Any]
    """``config`` of its config document: entry point, environment, user."""
    scratch: Path
    """A folder that runners may write to."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Path in the image -> path of this machine that is shown there, such as a GPU's device."""

    @property
    def entrypoint(self) -> list[str]:
        return [*(self.config.get("Entrypoint") or []), *(self.config.get("Cmd") or [])]

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        parts = (item.partition("=") for item in self.config.get("Env") or [])
        return {**{name: value for name, _, value in parts}, **extra}


def find(name: str) -> str:
    """Return the path of a program.

    Raises:
        MissingDependencyError: It is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path=_ROOTS_PROGRAMS)
    if found is None:
        raise MissingDependencyError(f"{name} is not installed")
    return found


def unpacked(image: UnpackedImage, arguments: list[str], variables: dict[str, str]) -> list[str]:
    """No isolation: the image's own loader, libraries and Python, from the unpacked folder."""
    root = image.rootfs
    inner = [
        str(root / "usr/bin/python3" if word == "python3" else _inside(root, word))
        for word in (arguments or image.entrypoint)
    ]
    environment = {
        name: str(_inside(root, value)) for name, value in image.environment(variables).items()
    }
    libraries = [str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu"))]
    loaders = [*root.glob("usr/lib*/ld-linux*.so.*"), *root.glob("usr/lib/*/ld-linux*.so.*")]
    if not libraries or not loaders:
        raise RunnerError("the image has no loader of its own")
    loader = [str(loaders[0]), "--library-path", ":".join(libraries)]
    # Without a home, Python finds that of whoever runs this, and a server writes its log there.
    pairs = [f"{n}={v}" for n, v in {"HOME": str(image.scratch), **environment}.items()]
    return [find("env"), "-i", *pairs, *loader, "--argv0", inner[0], *inner]


def _inside(root: Path, text: str) -> Path | str:
    path = root / text.lstrip("/")
    return path if text.startswith("/") and path.exists() else text
