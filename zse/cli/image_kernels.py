"""Finds or makes the kernel packs that an image is to carry."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, UsageError
from zse.install import install_hint
from zse.kernels.find import SUFFIX, cached_pack
from zse.kernels.pack import KernelPack
from zse.kernels.pack_errors import KernelPackError
from zse.kernels.sources import source_digest
from zse.kernels.targets import target_named
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def image_packs(
    gpus: Sequence[str], folder: Path | None, cache_dir: Path, report: Callable[[str], None]
) -> dict[str, Path]:
    """Return a checked pack for each GPU architecture.

    Args:
        gpus: Architectures by name.
        folder: Packs named after them; None takes those built before, and builds the rest.
        cache_dir: ``Settings.cache_dir``.
        report: Told what happens.

    Raises:
        NotFoundError: There is no pack for one of them, and none can be built here.
        KernelPackError: A pack is damaged, or of other kernels than this zse's.
    """
    return {
        gpu: _checked(_given(gpu, folder) if folder else _made(gpu, cache_dir, report), gpu)
        for gpu in dict.fromkeys(gpus)
    }


def _given(gpu: str, folder: Path) -> Path:
    path = folder / f"{target_named(gpu).name}{SUFFIX}"
    if not path.is_file():
        raise NotFoundError(
            f"{folder} holds no {path.name}",
            hint=f"Build it: zse kernels build --gpu {gpu} -o {path}; or choose others with --gpu.",
        )
    return path


def _made(gpu: str, cache_dir: Path, report: Callable[[str], None]) -> Path:
    path = cached_pack(target_named(gpu), cache_dir)
    if path.is_file():
        return path
    if find_spec("triton") is None:
        raise NotFoundError(
            f"there is no kernel pack for {gpu}, and triton is not installed to build one",
            hint=f"Name a folder of packs with --kernels. Or build one. {install_hint('kernels')}",
        )
    report(f"building kernels for {gpu}, which takes minutes, once")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "zse", "kernels", "build", "--gpu", gpu, "-o", str(path)]
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, env=subprocess_environment()
    )
    if done.returncode != 0:
        raise KernelPackError(
            f"building kernels for {gpu} ended with code {done.returncode}",
            hint=f"See all of it: zse kernels build --gpu {gpu} -o {path}",
        )
    return path


def _checked(path: Path, gpu: str) -> Path:
    """Verify every byte: in the image nobody can build another one."""
    pack = KernelPack.open(path)
    pack.verify()
    if pack.target != gpu:
        raise UsageError(f"{path} is a pack for {pack.target}, not for {gpu}")
    if pack.provenance["sources"] != source_digest():
        raise KernelPackError(
            f"{path} was built by zse {pack.provenance['zse']} from other kernels than these",
            hint=f"Build it again: zse kernels build --gpu {gpu} -o {path}",
        )
    return path
