"""Where a finished image is read from: a registry, a layout in a folder, or a layout in a tar file.

Each gives manifests and small blobs checked against their digests, and any blob as a stream whose
digest the reader checks. A registry is asked for layers only when somebody reads them.
"""

from __future__ import annotations

import tarfile
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING

from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import REFERRERS, choose_image, parse_index, split_place, with_kind
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, digest_of, hex_of, subject_of
from zse.oci.registry.client import open_registry
from zse.oci.registry.download import stream_blob
from zse.oci.registry.reference import parse_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.oci.registry.client import Registry

MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


class ImageSource(ABC):
    """One image, wherever it is."""

    @abstractmethod
    def top(self) -> bytes:
        """Return the manifest or index that the image's name stands for."""

    @abstractmethod
    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        """Yield the bytes of a blob, unchecked."""

    @abstractmethod
    def referrers(self, digest: str) -> list[Descriptor]:
        """Return what refers to a manifest."""

    def document(self, descriptor: Descriptor) -> bytes:
        """Return a manifest or a small blob, within a limit, its digest checked."""
        data = bytearray()
        for chunk in self.stream(descriptor):
            data += chunk
            if len(data) > MAX_DOCUMENT_BYTES:
                raise LayoutError(f"the document {descriptor.digest} is too large")
        if digest_of(bytes(data)) != descriptor.digest:
            raise DigestMismatchError(f"{descriptor.digest} has other bytes than its name says")
        return bytes(data)


class _RegistrySource(ImageSource):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def top(self) -> bytes:
        return self._registry.manifest(self._registry.reference.identifier).content

    def document(self, descriptor: Descriptor) -> bytes:
        if any(word in descriptor.media_type for word in ("manifest", "image.index")):
            return self._registry.manifest(descriptor.digest).content
        return super().document(descriptor)

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        return stream_blob(self._registry, descriptor)

    def referrers(self, digest: str) -> list[Descriptor]:
        return self._registry.referrers(digest)


class _LayoutSource(ImageSource):
    """An image in a layout, whose files are opened by their paths in it; None is an absent one."""

    def __init__(self, place: str, tag: str, open_file: Callable[[str], IO[bytes] | None]) -> None:
        self._place, self._tag, self._open_file = place, tag, open_file

    def top(self) -> bytes:
        return self.document(choose_image(self._manifests(), self._tag, place=self._place))

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        return self._read(f"blobs/sha256/{hex_of(descriptor.digest)}")

    def referrers(self, digest: str) -> list[Descriptor]:
        items = self._manifests()
        listed = [item for item in items if item.artifact_type]
        for other in filter(None, (item.annotations.get(REFERRERS) for item in items)):
            index = Descriptor(media_type=MEDIA_TYPE_INDEX, digest=other, size_bytes=0)
            listed += parse_index(self.document(index), place=other)
        return [item for item in listed if subject_of(self.document(item)) == digest]

    def _manifests(self) -> list[Descriptor]:
        return parse_index(b"".join(self._read("index.json")), place=self._place)

    def _read(self, name: str) -> Iterator[bytes]:
        stream = self._open_file(name)
        if stream is None:
            raise LayoutError(f"{self._place} lacks {name}")
        with stream:
            while data := stream.read(_CHUNK_BYTES):
                yield data


def _in_folder(folder: Path) -> Callable[[str], IO[bytes] | None]:
    def open_file(name: str) -> IO[bytes] | None:
        with suppress(FileNotFoundError):
            return (folder / name).open("rb", buffering=0)
        return None

    return open_file


def _in_tar(archive: tarfile.TarFile) -> Callable[[str], IO[bytes] | None]:
    members = {member.name.removeprefix("./"): member for member in archive}

    def open_file(name: str) -> IO[bytes] | None:
        member = members.get(name)
        return archive.extractfile(member) if member and member.isreg() else None

    return open_file


@contextmanager
def open_image(text: str, *, auth_file: Path, is_hurried: bool = False) -> Iterator[ImageSource]:
    """Open ``oci:DIR[:TAG]``, ``tar:FILE[:TAG]`` or an image reference; hurried, within seconds.

    A layout or a tar file that is there needs no word before its path.

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
            ImageLayout.open(path)
            yield _LayoutSource(f"oci:{path}", tag, _in_folder(path))
            return
        with _open_tar(path) as archive:
            yield _LayoutSource(f"tar:{path}", tag, _in_tar(archive))
        return
    with open_registry(parse_reference(text), auth_file, is_hurried=is_hurried) as registry:
        yield _RegistrySource(registry)


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path, mode="r:"))
            archive.getmembers()
        except (tarfile.TarError, OSError) as error:
            raise LayoutError(
                f"{path} is not a tar file, whole and not compressed: {error}"
            ) from error
        yield archive
