"""What an image stands on: Debian packages, a registry's image, a layout's image, or a tar file.

Of a base in a registry only the manifest and the config are read; its layers are mounted when the
image goes to the same registry and copied blob by blob when it goes elsewhere, never unpacked.
"""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
import zlib
from dataclasses import field, replace
from typing import IO, TYPE_CHECKING, Any

import zstandard

from zse.errors import NotFoundError
from zse.oci.debian.packages import SUITE_PYTHON
from zse.oci.errors import BadReferenceError, ImageRule, LayoutError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import split_place, with_kind
from zse.oci.layout.layer import Compression, Layer, open_stored, write_layer_from_tar
from zse.oci.layout.manifest import INDEX_TYPES, Descriptor, choose_platform, digest_of
from zse.oci.registry.client import open_registry
from zse.oci.registry.download import pull_blob
from zse.oci.registry.reference import parse_reference
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from zse.oci.image.options import BuildOptions
    from zse.oci.registry.client import Registry

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
    if name.kind == "oci":
        base = base_from_layout(name.value, platform=platform)
    else:
        reference = parse_reference(name.value)
        registry = stack.enter_context(open_registry(reference, options.auth_file))
        base = base_from_registry(registry, platform=platform, cache=options.downloads / "bases")
    check_can_carry(base)
    return base


def base_from_layout(value: str, *, platform: str) -> Base:
    """Read a base from ``DIR[:TAG]``.

    Raises:
        NotFoundError: There is no such folder.
        LayoutError: It is no layout, or holds no such image.
        BadReferenceError: What it holds is no image, or not made for this platform.
    """
    folder, tag = split_place(value)
    layout = ImageLayout.open(folder)

    def fetch(descriptor: Descriptor) -> Path:
        path = layout.blob_path(descriptor.digest)
        if not path.is_file():
            raise LayoutError(f"{folder} lacks the blob {descriptor.digest}")
        return path

    name = f"oci:{folder.name}"
    manifest = layout.find_manifest(tag, platform=platform)
    base = _parsed(name, manifest, lambda config: layout.read_blob(config.digest))
    return replace(base, fetch=fetch)


def base_from_registry(registry: Registry, *, platform: str, cache: Path) -> Base:
    """Read a base's manifest and config from a registry.

    Raises:
        RegistryError: The registry refuses, or has no such image.
        BadReferenceError: It is no image, or not made for this platform.
    """
    found = registry.manifest(registry.reference.identifier)
    if found.media_type in INDEX_TYPES:
        found = registry.manifest(choose_platform(found.document, platform).digest)
    base = _parsed(str(registry.reference), found.content, registry.small_blob)
    return replace(
        base,
        fetch=lambda descriptor: pull_blob(registry, descriptor, cache),
        repository=(registry.reference.host, registry.reference.repository),
    )


def _parsed(name: str, manifest: bytes, read_config: Callable[[Descriptor], bytes]) -> Base:
    """Read what the documents of an image say; who calls adds where its layers are had."""
    try:
        document = json.loads(manifest)
        layers = tuple(Descriptor.from_json(item) for item in document["layers"])
        config = json.loads(read_config(Descriptor.from_json(document["config"])))
    except (ValueError, KeyError, TypeError) as error:
        raise BadReferenceError(f"{name} is not an image: {error!r}") from error
    if not isinstance(config, dict):
        raise BadReferenceError(f"{name} is not an image: its config is not a JSON object")
    return Base(name=name, digest=digest_of(manifest), config=config, layers=layers)


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
