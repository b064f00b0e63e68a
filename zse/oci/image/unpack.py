"""An image on disk as a container runtime would lay it out: layers in order, deletions carried out.

A path, link or deletion that points outside the folder lands inside it, the way it would in a
container, where the folder is the root.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import zstandard

from zse.errors import DiskFullError
from zse.oci.errors import ImageRule, LayoutError
from zse.oci.layout.layer import open_stored

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MAX_LINKS = 40
"""As the kernel counts."""


def unpack(layers: Iterable[Path], rootfs: Path) -> None:
    """Unpack stored layers, in order, into an empty folder, which becomes the container's root.

    Raises:
        LayoutError: A layer cannot be read.
        ImageError: A layer holds a path with ``..`` in it.
        DiskFullError: There is no room left.
    """
    rootfs.mkdir(parents=True, exist_ok=True)
    rootfs.chmod(0o755)
    for layer in layers:
        try:
            with open_stored(layer) as stream:
                _unpack_layer(stream, rootfs)
        except (tarfile.TarError, zstandard.ZstdError, zlib.error, EOFError) as error:
            raise LayoutError(f"layer {layer.name} cannot be unpacked: {error}") from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise DiskFullError(f"no room left in {rootfs}") from error
            raise LayoutError(f"layer {layer.name} cannot be unpacked: {error}") from error


def _unpack_layer(stream: IO[bytes], rootfs: Path) -> None:
    written: set[Path] = set()
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if ".." in parts:
                raise ImageRule.UNSAFE_ARCHIVE(f"a layer holds the path {member.name!r}")
            if not parts:
                continue
            parent = inside(rootfs, "/".join(parts[:-1]))
            if parts[-1] == _OPAQUE:
                _empty(parent, written)
            elif parts[-1].startswith(_WHITEOUT):
                _remove(parent / _deleted_name(member.name, parts[-1]))
            else:
                parent.mkdir(parents=True, exist_ok=True)
                _write(archive, member, parent / parts[-1], rootfs)
                written.add(parent / parts[-1])


def _deleted_name(path: str, whiteout: str) -> str:
    """Return the name that a whiteout deletes beside itself: ``.wh.NAME`` deletes ``NAME``.

    ``.wh...`` would delete the folder above, which at the top of a layer is one of this machine.

    Raises:
        ImageError: The name is none, or leads to a folder that the whiteout does not lie in.
    """
    name = whiteout.removeprefix(_WHITEOUT)
    if name in {"", ".", ".."}:
        raise ImageRule.UNSAFE_ARCHIVE(f"a layer deletes {name!r}, by the path {path!r}")
    return name


def inside(rootfs: Path, path: str) -> Path:
    """Follow a path and its links as if a folder were the root; the last part may not exist."""
    done: list[str] = []
    rest = path.split("/")[::-1]
    links = 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done[:-1]
            continue
        here = rootfs.joinpath(*done, part)
        if not here.is_symlink():
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise ImageRule.UNSAFE_ARCHIVE(f"{path!r} leads in circles")
        target = str(here.readlink())
        if target.startswith("/"):
            done = []
        rest += target.split("/")[::-1]
    return rootfs.joinpath(*done)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, rootfs: Path) -> None:
    if member.isdir():
        if not target.is_dir() or target.is_symlink():
            _remove(target)
            target.mkdir()
    else:
        _remove(target)
        if member.issym():
            target.symlink_to(member.linkname)
        elif member.islnk():
            # The name of a link is resolved up to its last part, which may be a link itself.
            head, _, tail = member.linkname.rpartition("/")
            os.link(inside(rootfs, head) / tail, target, follow_symlinks=False)
        elif member.isreg():
            source = archive.extractfile(member)
            assert source is not None
            with target.open("xb") as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
        else:
            return  # devices and pipes: a runtime makes its own
    if os.getuid() == 0 and not member.islnk():
        os.chown(target, member.uid, member.gid, follow_symlinks=False)
    if not (member.issym() or member.islnk()):
        target.chmod(member.mode & 0o7777)
        if member.isreg():
            os.utime(target, (member.mtime, member.mtime))


def _empty(folder: Path, kept: set[Path]) -> None:
    with suppress(FileNotFoundError):
        for child in list(folder.iterdir()):
            if child not in kept:
                _remove(child)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
