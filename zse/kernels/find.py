"""Decides which kernel pack a GPU gets, and from where.

Nothing here imports triton: where a pack must be built, a child process builds it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zse.errors import NotFoundError, ZSEError
from zse.kernels.errors import KernelPackError, KernelPackNotFound
from zse.kernels.pack import KernelPack
from zse.kernels.sources import source_digest
from zse.kernels.targets import TARGETS, targets_for
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zse.device.facts import DeviceFacts
    from zse.kernels.targets import Target

SHIPPED = Path(__file__).parent / "packs"
SUFFIX = ".zkp"
_LOG = logging.getLogger("zse.kernels")


class Sections(Protocol):
    """A .zse file, as far as packs are concerned."""

    def has_section(self, name: str) -> bool: ...
    def section(self, name: str) -> memoryview: ...


def section_name(target: Target) -> str:
    return f"kernels/{target.name}"


def cached_pack(target: Target, cache_dir: Path) -> Path:
    """Return where a pack of these sources lies in the cache folder, whether or not it is there."""
    return cache_dir / "kernels" / f"{target.name}-{source_digest()[:16]}{SUFFIX}"


def find_pack(
    device: DeviceFacts,
    *,
    explicit: Path | None,
    sections: Sections | None,
    cache_dir: Path | None,
    build: bool = True,
) -> KernelPack:
    """Return the pack for a GPU.

    The first of these that is there: the one named by the user, a section of the model file, one
    shipped with zse or the image, one in the cache, one built now by a child process. Only the
    one named by the user may be of other kernel sources than this zse's.

    Args:
        explicit: A pack, or a folder of packs named after targets; a flag or ZSE_KERNELS.
        cache_dir: ``Settings.cache_dir``; None finds and builds nothing there.

    Raises:
        NotFoundError: The explicit path does not exist.
        KernelPackError: A pack is damaged, or the explicit one for another architecture.
        KernelPackNotFound: There is none, and none can be built.
    """
    targets = targets_for(device.target)
    if explicit is not None:
        pack = _open(_inside(explicit, targets, device.name))
        pack.require(device.target, device.name)
        return pack
    found = _find_shipped(targets, sections, cache_dir)
    if found is not None:
        return found
    if not targets:
        raise KernelPackNotFound(
            f"{device.name} is of the architecture {device.target}, for which zse has no kernels",
            hint=f"Use a GPU of one of {', '.join(TARGETS)}, or --device cpu.",
        )
    name = targets[0].name
    if build and cache_dir is not None and find_spec("triton") is not None:
        path = cached_pack(targets[0], cache_dir)
        _LOG.warning(
            "no kernel pack for %s: building one into %s, which takes minutes, once", name, path
        )
        build_in_child(name, path, report=_LOG.info)
        return KernelPack.open(path)
    raise KernelPackNotFound(
        f"there is no kernel pack for {device.name} ({name}), and none can be built here",
        hint=f"Build the image with `--gpu {name}`, or build a pack on any machine with zse's "
        f"extra `kernels`: `zse kernels build --gpu {name} -o PACK`, and name it with --kernels "
        "or ZSE_KERNELS.",
    )


def read_ahead(explicit: str = "") -> None:
    """Read the pack that a GPU is likely to get, before it is known which GPU that is.

    That is the only one that is named, or shipped. What is wrong with it ``find_pack`` says.
    """
    place = Path(explicit) if explicit else SHIPPED
    found = [place] if place.is_file() else [*place.glob(f"*{SUFFIX}")]
    if len(found) == 1:
        with suppress(ZSEError):
            _open(found[0])


def _find_shipped(
    targets: tuple[Target, ...], sections: Sections | None, cache_dir: Path | None
) -> KernelPack | None:
    for target in targets:
        name = section_name(target)
        if sections is not None and sections.has_section(name):
            pack = KernelPack.open(sections.section(name))
            if _is_current(pack, f"section {name} of the model file"):
                return pack
    paths = [SHIPPED / f"{target.name}{SUFFIX}" for target in targets]
    if cache_dir is not None and source_digest():
        paths += [cached_pack(target, cache_dir) for target in targets]
    for path in paths:
        if path.is_file():
            pack = _open(path)
            if _is_current(pack, str(path)):
                return pack
    return None


def _open(path: Path) -> KernelPack:
    """Open a pack, once a process: the next model finds its kernels read and checked."""
    try:
        found = path.stat()
    except OSError:
        return KernelPack.open(path)  # which says what is wrong
    return _opened(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=2)
def _opened(path: Path, file_state: tuple[int, ...]) -> KernelPack:  # noqa: ARG001
    return KernelPack.open(path)


def _is_current(pack: KernelPack, where: str) -> bool:
    """Whether a pack was built from the kernels of this zse, as far as that can be told."""
    digest = source_digest()
    if digest and pack.provenance["sources"] != digest:
        _LOG.warning(
            "%s is passed over: zse %s built it from other kernels than those of this version",
            where,
            pack.provenance["zse"],
        )
        return False
    _LOG.debug("kernel pack: %s", where)
    return True


def _inside(path: Path, targets: tuple[Target, ...], device_name: str) -> Path:
    if not path.is_dir():
        return path
    names = [f"{target.name}{SUFFIX}" for target in targets]
    for name in names:
        if (path / name).is_file():
            return path / name
    raise NotFoundError(
        f"{path} holds none of the packs {', '.join(names)} that {device_name} can use",
        hint=f"Build one: zse kernels build --gpu {names[0].removesuffix(SUFFIX)} -o {path}",
    )


def build_in_child(gpu: str, path: Path, *, report: Callable[[str], None] | None = None) -> None:
    """Have a child process build a pack: triton is never imported here.

    Args:
        path: Where the pack is written, in place of one that is there.
        report: Told each line of progress; without it the child shows it itself, on stderr.

    Raises:
        KernelPackError: It did not succeed.
    """
    # What is there is another process's, finished meanwhile, or of other sources.
    command = ["-m", "zse", "kernels", "build", "--gpu", gpu, "--force", "-o", str(path)]
    with subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE if report else None,
        text=True,
        env=subprocess_environment(),
    ) as child:
        try:
            last = _relay(child.stderr, report) if child.stderr and report else ""
            child.wait()
        except SystemExit:  # told to end; an interrupt at the terminal reaches the child by itself
            child.terminate()
            raise
    if child.returncode != 0:
        raise KernelPackError(
            f"building kernels for {gpu} ended with code {child.returncode}{last}",
            hint=f"See all of it: zse kernels build --gpu {gpu} -o PACK",
        )


def _relay(lines: Iterable[str], report: Callable[[str], None]) -> str:
    """Pass on what a build says; return its last words, as they end a sentence."""
    last = ""
    for line in lines:
        if words := line.strip():
            report(words)
            last = f": {words}"
    return last
