"""What an image stands on: Debian packages, a registry's image, a layout's image, or a tar file.

Of a base in a registry only the manifest and the config are read; its layers are mounted when the
image goes to the same registry and copied blob by blob when it goes elsewhere, never unpacked.
"""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from dataclasses import field
from typing import IO, TYPE_CHECKING, Any

import zstandard

from zse.errors import NotFoundError
from zse.oci.debian.packages import SUITE_PYTHON
from zse.oci.errors import BadReferenceError, ImageRule, LayoutError
from zse.oci.image.source import open_image, platform_manifests
from zse.oci.layout.index import with_kind
from zse.oci.layout.layer import Compression, Layer, open_stored, write_layer_from_tar
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from zse.oci.image.options import BuildOptions
    from zse.oci.image.source import ImageSource
    from zse.oci.layout.manifest import Descriptor

_TAR_CHUNK_BYTES = 1 << 20


def _no_layer(descriptor: Descriptor) -> Path:
    raise NotFoundError(f"there is no base that could give the layer {descriptor.digest}")


@record
class Base:
    """A base: an image, with a digest of its manifest and a config document, or only files."""

    name: str
    """What is remembered of it; holds no address of a mirror."""
    digest: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[Descriptor, ...] = ()
    fetch: Callable[[Descriptor], Path] = _no_layer
    """Gives the local file of one of its layers, fetching it first where it must be."""
    repository: tuple[str, str] = ("", "")
    """Registry host and repository its layers can be mounted from."""


@record
class BaseName:
    """A parsed ``--base``: which kind, and its argument."""

    kind: str
    value: str


def parse_base(text: str) -> BaseName:
    """Parse ``debian[:SUITE]``, ``oci:DIR[:TAG]``, ``rootfs:TAR`` or an image reference.

    The path of a layout needs no ``oci:``.
    """
    if with_kind(text).startswith("oci:"):
        text = with_kind(text)
    head, colon, rest = text.partition(":")
    if head == "debian" and "/" not in text and "@" not in text:
        return BaseName(kind="debian", value=rest)
    if head in {"oci", "rootfs"} and colon:
        if not rest:
            raise BadReferenceError(f"--base {text} names no path", hint=f"Write {head}:PATH.")
        return BaseName(kind=head, value=rest)
    return BaseName(kind="registry", value=text)


def open_base(name: BaseName, platform: str, options: BuildOptions, stack: ExitStack) -> Base:
    """Read a base that is an image and can carry layers; ``stack`` closes what its own come by.

    Raises:
        ImageError: Any of its subclasses: it cannot be read, or nothing can be put on top of it.
        NotFoundError: There is no such folder.
    """
    text = f"oci:{name.value}" if name.kind == "oci" else name.value
    source = stack.enter_context(open_image(text, auth_file=options.auth_file))
    base = read_base(source, platform=platform, cache=options.downloads / "bases")
    check_can_carry(base)
    return base


def read_base(source: ImageSource, *, platform: str, cache: Path) -> Base:
    """Read a base's manifest and config; its layers are fetched into ``cache``, while it is open.

    Raises:
        ImageError: Any of its subclasses: it cannot be read.
        BadReferenceError: It is no image, or not made for this platform.
    """
    _, (image,) = platform_manifests(source, platform, error=BadReferenceError)
    return Base(
        name=source.name,
        digest=image.descriptor.digest,
        config=image.config,
        layers=image.layers,
        fetch=lambda descriptor: source.fetch(descriptor, cache),
        repository=source.repository,
    )


def check_can_carry(base: Base) -> None:
    """Refuse a base whose config does not name each of its layers: nothing can be put on top.

    Raises:
        BadReferenceError: It is such a base.
    """
    diff_ids = (base.config.get("rootfs") or {}).get("diff_ids", ())
    if len(diff_ids) != len(base.layers):
        raise BadReferenceError(
            f"the config of {base.name} lists {len(diff_ids)} layers, its manifest "
            f"{len(base.layers)}",
            hint="Choose another base.",
        )


def check_rootfs(path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(f"{path} does not exist", hint="Give a tar file as rootfs:FILE.")


def layer_from_rootfs(path: Path, blobs: Path, *, compression: Compression) -> Layer:
    """Store a tar file of a root file system (plain, .gz, .xz or .zst) as a layer.

    Raises:
        NotFoundError: There is no such file.
        LayoutError: It cannot be decompressed, or is no whole tar file.
    """
    check_rootfs(path)
    try:
        with open_stored(path) as stream:
            return write_layer_from_tar(
                _tar_chunks(stream, path), blobs, compression=compression, comment="rootfs"
            )
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise LayoutError(f"{path} cannot be decompressed: {error}") from error


def _tar_chunks(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield a tar stream after a look at how it begins, and look at how it ends."""
    size_bytes, end = 0, b""
    while data := stream.read(_TAR_CHUNK_BYTES):
        if size_bytes == 0:
            _check_header(data[: tarfile.BLOCKSIZE], path)
        size_bytes += len(data)
        end = (end + data)[-tarfile.BLOCKSIZE :]
        yield data
    # Every tar ends with blocks of zeros.
    if size_bytes % tarfile.BLOCKSIZE or end != bytes(tarfile.BLOCKSIZE):
        raise LayoutError(f"{path} is not a whole tar file: it ends after {size_bytes} bytes")


def _check_header(block: bytes, path: Path) -> None:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise LayoutError(f"{path} is not a tar file: {error}") from error


def suite_of(value: str, default: str, *, python: str) -> str:
    """Return the Debian suite to use; its Python must be the one the wheels are made for.

    Raises:
        ImageError: The suite is unknown, or carries another Python.
    """
    suite, known = value or default, SUITE_PYTHON
    if suite not in known:
        raise ImageRule.DEBIAN(
            f"the Debian suite {suite!r} is not known", hint=f"Known: {', '.join(sorted(known))}."
        )
    if known[suite] != python:
        raise ImageRule.DEBIAN(
            f"Debian {suite} has Python {known[suite]}, the image's wheels are for {python}",
            hint=f"Use --base debian:{default}, or another recipe.",
        )
    return suite
