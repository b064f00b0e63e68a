"""Where a finished image is read from: a registry, a layout in a folder, or a layout in a tar file.

Each gives manifests and small blobs checked against their digests, and any blob as a stream whose
digest the reader checks. A registry is asked for layers only when somebody reads them.
"""

from __future__ import annotations

import tarfile
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import REFERRERS, choose_image, parse_index, split_place, with_kind
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, digest_of, subject_of
from zse.oci.registry.client import open_registry
from zse.oci.registry.download import stream_blob
from zse.oci.registry.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.oci.registry.client import Registry

MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


class ImageSource(Protocol):
    """One image, wherever it is."""

    def top(self) -> bytes:
        """Return the manifest or index that the image's name stands for."""

    def document(self, descriptor: Descriptor) -> bytes:
        """Return a manifest or a small blob, its digest checked."""

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a blob, unchecked."""

    def referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest."""


@contextmanager
def open_image(text: str, *, auth_file: Path, is_hurried: bool = False) -> Iterator[ImageSource]:
    """Open ``oci:DIR[:TAG]``, ``tar:FILE[:TAG]`` or an image reference.

    A layout or a tar file that is there needs no word before its path.

    Args:
        text: Names the image.
        auth_file: docker's config.json.
        is_hurried: Wait seconds instead of minutes for a registry.

    Raises:
        NotFoundError: There is no such file or folder.
        BadReferenceError: The text is no image reference, or names no path.
        LayoutError: The folder or file holds no image.
    """
    text = with_kind(text)
    kind, _, place = text.partition(":")
    if kind in {"oci", "tar"}:
        path, tag = split_place(place)
        if kind == "oci":
            yield LayoutSource(ImageLayout.open(path), tag)
            return
        with _open_tar(path) as archive:
            yield ArchiveSource(archive, path, tag)
        return
    with open_registry(parse_reference(text), auth_file, is_hurried=is_hurried) as registry:
        yield RegistrySource(registry)


class RegistrySource:
    """An image in a registry.

    Args:
        registry: The repository, opened with the image's reference.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def top(self) -> bytes:
        """Return the manifest or index that the reference names."""
        return self._registry.manifest(self._registry.reference.identifier).content

    def document(self, descriptor: Descriptor) -> bytes:
        if _is_manifest(descriptor):
            return self._registry.manifest(descriptor.digest).content
        return _checked(descriptor, self.stream(descriptor))

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        return stream_blob(self._registry, descriptor)

    def referrers(self, digest: str) -> list[Descriptor]:
        return self._registry.referrers(digest)


class LayoutSource:
    """An image in a layout.

    Args:
        layout: The layout.
        tag: Names one of its images; not needed when there is only one.
    """

    def __init__(self, layout: ImageLayout, tag: str) -> None:
        self._layout, self._tag = layout, tag

    def top(self) -> bytes:
        """Return the manifest or index that the tag names."""
        return self._layout.read_blob(self._layout.find_image(self._tag).digest)

    def document(self, descriptor: Descriptor) -> bytes:
        return _checked(descriptor, self.stream(descriptor))

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        path = self._layout.blob_path(descriptor.digest)
        try:
            with path.open("rb", buffering=0) as stream:
                while data := stream.read(_CHUNK_BYTES):
                    yield data
        except FileNotFoundError:
            raise LayoutError(f"{self._layout.folder} lacks {descriptor.digest}") from None

    def referrers(self, digest: str) -> list[Descriptor]:
        return _referring(self, self._layout.manifests(), digest)


class ArchiveSource:
    """An image in a tar file that holds a layout.

    Args:
        archive: The open file.
        path: Its path, for messages.
        tag: Names one of its images; not needed when there is only one.
    """

    def __init__(self, archive: tarfile.TarFile, path: Path, tag: str) -> None:
        self._archive, self._path, self._tag = archive, path, tag
        self._members = {member.name.removeprefix("./"): member for member in archive}

    def top(self) -> bytes:
        """Return the manifest or index that the tag names."""
        chosen = choose_image(self._manifests(), self._tag, place=f"tar:{self._path}")
        return self.document(chosen)

    def document(self, descriptor: Descriptor) -> bytes:
        return _checked(descriptor, self.stream(descriptor))

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        yield from self._read(f"blobs/{descriptor.digest.replace(':', '/', 1)}")

    def referrers(self, digest: str) -> list[Descriptor]:
        return _referring(self, self._manifests(), digest)

    def _manifests(self) -> list[Descriptor]:
        return parse_index(b"".join(self._read("index.json")), place=str(self._path))

    def _read(self, name: str) -> Iterator[bytes]:
        member = self._members.get(name)
        stream = self._archive.extractfile(member) if member and member.isreg() else None
        if stream is None:
            raise LayoutError(f"{self._path} lacks {name}")
        while data := stream.read(_CHUNK_BYTES):
            yield data


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar file and read the list of its members."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path, mode="r:"))
            archive.getmembers()
        except (tarfile.TarError, OSError) as error:
            raise LayoutError(
                f"{path} is not a tar file, whole and not compressed: {error}"
            ) from error
        yield archive


def _referring(source: ImageSource, items: list[Descriptor], digest: str) -> list[Descriptor]:
    """Return those of a layout's artifacts that refer to a manifest."""
    listed = [item for item in items if item.artifact_type]
    for other in filter(None, (item.annotations.get(REFERRERS) for item in items)):
        index = Descriptor(media_type=MEDIA_TYPE_INDEX, digest=other, size_bytes=0)
        listed += parse_index(source.document(index), place=other)
    return [item for item in listed if subject_of(source.document(item)) == digest]


def _checked(descriptor: Descriptor, chunks: Iterator[bytes]) -> bytes:
    """Collect a document, within a limit, and compare its digest."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_DOCUMENT_BYTES:
            raise LayoutError(f"the document {descriptor.digest} is too large")
    if digest_of(bytes(data)) != descriptor.digest:
        raise DigestMismatchError(f"{descriptor.digest} has other bytes than its name says")
    return bytes(data)


def _is_manifest(descriptor: Descriptor) -> bool:
    return any(word in descriptor.media_type for word in ("manifest", "image.index"))
