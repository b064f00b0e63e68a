"""Finds or makes the kernel packs that an image is to carry.

The first of these that has one: what ``--kernels`` names, the cache, the released packs, triton.
Finding comes long before building, so that what cannot be had is known before any work.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, UsageError, ZSEError
from zse.install import install_hint
from zse.kernels.build.artifact import PackArtifact, is_artifact, open_artifact
from zse.kernels.build.released import release_address
from zse.kernels.errors import KernelPackError
from zse.kernels.find import SUFFIX, build_in_child, cached_pack
from zse.kernels.pack import KernelPack
from zse.kernels.sources import source_digest
from zse.kernels.targets import target_named
from zse.records import record
from zse.store.cache_use import using
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.settings import Settings


@record
class ImagePacks:
    """What was found, and what must be built."""

    found: dict[str, Path]
    """Architecture -> a checked pack."""
    missing: tuple[str, ...]


def find_image_packs(
    gpus: Sequence[str], given: str, settings: Settings, report: Callable[[str], None]
) -> ImagePacks:
    """Look for a pack for each GPU architecture.

    Args:
        gpus: Architectures by name.
        given: A folder of packs named after them, or an artifact: ``oci:DIR[:TAG]``,
            ``REGISTRY/REPOSITORY[:TAG]``. Empty takes those built or fetched before, then those
            of the release.
        settings: Where the cache, the released packs and the credentials are.
        report: Told what happens.

    Raises:
        NotFoundError: There is no pack for one of them, and none can be built here.
        ImageError: The artifact that was named cannot be read.
        KernelPackError: A pack is damaged, or of other kernels than this zse's.
    """
    wanted = tuple(dict.fromkeys(gpus))
    if given:
        take = _fetched if is_artifact(given) else _in_folder
        return ImagePacks(found=take(wanted, given, settings), missing=())
    paths = {gpu: cached_pack(target_named(gpu), settings.cache_dir) for gpu in wanted}
    found = {gpu: _checked(path, gpu) for gpu, path in paths.items() if path.is_file()}
    missing = tuple(gpu for gpu in wanted if gpu not in found)
    released = release_address(settings.released_kernels)
    if missing and released:
        found |= _released(missing, released, settings, report)
        missing = tuple(gpu for gpu in wanted if gpu not in found)
    if missing and find_spec("triton") is None:
        raise NotFoundError(
            f"there is no kernel pack for {', '.join(missing)}, and triton is not installed to "
            "build one",
            hint="Name the repository of released packs in ZSE_RELEASED_KERNELS; or name packs "
            "with --kernels, a folder or an artifact (`zse kernels build` and `zse kernels push` "
            f"make them on any machine); or build them here. {install_hint('kernels')}",
        )
    return ImagePacks(found=found, missing=missing)


def build_image_packs(
    packs: ImagePacks, cache_dir: Path, report: Callable[[str], None]
) -> dict[str, Path]:
    """Return all packs, those built that were missing.

    Raises:
        KernelPackError: A kernel does not compile.
    """
    return packs.found | {gpu: _built(gpu, cache_dir, report) for gpu in packs.missing}


def find_cpu_kernels(platforms: Sequence[str]) -> None:
    """See to it that this installation has the kernels of the platforms' processors.

    A checkout also compiles what copies weights to a GPU.

    Raises:
        NativeLibraryError: It lacks some; a checkout compiles them instead.
    """
    from zse.kernels.native.library import libraries
    from zse.kernels.native.sources import has_sources

    architectures = [platform.partition("/")[2] for platform in platforms]
    for architecture in architectures:
        libraries(architecture)
    if has_sources():
        from zse.kernels.native.build_loader import build_loader

        build_loader(architectures)


def _in_folder(gpus: Sequence[str], given: str, _: Settings) -> dict[str, Path]:
    paths = {gpu: Path(given) / f"{target_named(gpu).name}{SUFFIX}" for gpu in gpus}
    for gpu, path in paths.items():
        if not path.is_file():
            raise NotFoundError(
                f"{given} holds no {path.name}",
                hint=f"Build it: zse kernels build --gpu {gpu} -o {quote(str(path))}; "
                "or choose others with --gpu.",
            )
    return {gpu: _checked(path, gpu) for gpu, path in paths.items()}


def _fetched(gpus: Sequence[str], given: str, settings: Settings) -> dict[str, Path]:
    auth_file = settings.registry_auth_file
    with open_artifact(given, source_digest(), auth_file=auth_file) as artifact:
        return {gpu: _kept(artifact, gpu, settings.cache_dir) for gpu in gpus}


def _released(
    gpus: Sequence[str], place: str, settings: Settings, report: Callable[[str], None]
) -> dict[str, Path]:
    """Return what the release has; that it has nothing, or is not reached, is no error."""
    found: dict[str, Path] = {}
    auth_file = settings.registry_auth_file
    try:
        with open_artifact(
            place, source_digest(), auth_file=auth_file, is_hurried=True
        ) as artifact:
            for gpu in gpus:
                found[gpu] = _kept(artifact, gpu, settings.cache_dir)
                report(f"kernels for {gpu} are those of {place}")
    except ZSEError as error:
        report(f"no released kernels from {place}: {error}")
    return found


def _kept(artifact: PackArtifact, gpu: str, cache_dir: Path) -> Path:
    """Put a pack of an artifact into the cache, after every check."""
    data = artifact.read(gpu)
    _check(KernelPack.open(data), gpu, f"{artifact.name} for {gpu}")
    path = cached_pack(target_named(gpu), cache_dir)
    with using(cache_dir, "kernels"):
        write_whole(path, data)
    return path


def _built(gpu: str, cache_dir: Path, report: Callable[[str], None]) -> Path:
    path = cached_pack(target_named(gpu), cache_dir)
    report(f"building kernels for {gpu}, which takes minutes, once")
    build_in_child(gpu, path)
    return _checked(path, gpu)


def _checked(path: Path, gpu: str) -> Path:
    """Verify every byte: in the image nobody can build another one."""
    pack = KernelPack.open(path)
    pack.verify()
    _check(pack, gpu, str(path))
    return path


def _check(pack: KernelPack, gpu: str, name: str) -> None:
    if pack.target != gpu:
        raise UsageError(f"{name} is a pack for {pack.target}, not for {gpu}")
    if pack.provenance["sources"] != source_digest():
        raise KernelPackError(
            f"{name} was built by zse {pack.provenance['zse']} from other kernels than these",
            hint=f"Build it again: zse kernels build --gpu {gpu} -o PACK",
        )
