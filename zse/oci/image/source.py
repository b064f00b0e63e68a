"""Where a finished image is read from: a registry, a layout in a folder, or a layout in a tar file.

Each gives manifests and small blobs checked against their digests, and any blob as a stream whose
digest the reader checks, or as a file. A registry is asked for a layer when somebody reads it.
"""

from __future__ import annotations

import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from zse.errors import NotFoundError, UsageError
from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import REFERRERS, choose_image, parse_index, split_place, with_kind
from zse.oci.layout.layer import blob_file
from zse.oci.layout.manifest import (
    MALFORMED,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    choose_platform,
    digest_of,
    hex_of,
    subject_of,
)
from zse.oci.registry.client import open_registry
from zse.oci.registry.download import stream_blob
from zse.oci.registry.reference import parse_reference
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.errors import ImageError
    from zse.oci.registry.client import Registry

MAX_DOCUMENT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


Json = Mapping[str, Any]


@record
class PlatformManifest:
    """A platform's manifest and config, parsed."""

    descriptor: Descriptor
    manifest: Json
    config: Json
    layers: tuple[Descriptor, ...]
    """In order."""
    size_bytes: int
    """What a pull of all of it moves."""

    @property
    def platform(self) -> str:
        return f"{self.config.get('os')}/{self.config.get('architecture')}"

    @property
    def labels(self) -> dict[str, str]:
        run: Json = self.config.get("config") or {}
        return dict(run.get("Labels") or {})


class ImageSource(ABC):
    """One image, wherever it is."""

    name: str
    """What is remembered of it; holds no address of a mirror."""
    repository: tuple[str, str] = ("", "")
    """Registry host and repository its layers can be mounted from."""

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

    def fetch(self, descriptor: Descriptor, blobs: Path) -> Path:
        """Return a blob as a file, in a folder of blobs unless it is one already.

        Raises:
            ImageError: Any of its subclasses: it cannot be had, or has another digest.
        """
        target = blobs / hex_of(descriptor.digest)
        if target.is_file() and target.stat().st_size == descriptor.size_bytes:
            return target
        with blob_file(blobs) as blob:
            for chunk in self.stream(descriptor):
                blob.write(chunk)
            if f"sha256:{blob.hex_digest}" != descriptor.digest:
                raise DigestMismatchError(f"blob {descriptor.digest} arrived with other bytes")
        return target


class RegistrySource(ImageSource):
    """An image in a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry, reference = registry, registry.reference
        self.name, self.repository = str(reference), (reference.host, reference.repository)

    def top(self) -> bytes:
        return self._registry.manifest(self._registry.reference.identifier)

    def document(self, descriptor: Descriptor) -> bytes:
        if any(word in descriptor.media_type for word in ("manifest", "image.index")):
            return self._registry.manifest(descriptor.digest)
        return super().document(descriptor)

    def stream(self, descriptor: Descriptor) -> Iterator[bytes]:
        return stream_blob(self._registry, descriptor)

    def referrers(self, digest: str) -> list[Descriptor]:
        return self._registry.referrers(digest)


class _LayoutSource(ImageSource):
    """An image in a layout."""

    def __init__(self, kind: str, path: Path, tag: str) -> None:
        self.name, self._place, self._tag = f"{kind}:{path.name}", f"{kind}:{path}", tag

    @abstractmethod
    def open_file(self, name: str) -> IO[bytes] | None:
        """Open a file by its path in the layout; None when it is absent."""

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
        stream = self.open_file(name)
        if stream is None:
            raise LayoutError(f"{self._place} lacks {name}")
        with stream:
            while data := stream.read(_CHUNK_BYTES):
                yield data


class _FolderSource(_LayoutSource):
    def __init__(self, folder: Path, tag: str) -> None:
        super().__init__("oci", folder, tag)
        self._layout = ImageLayout.open(folder)

    def open_file(self, name: str) -> IO[bytes] | None:
        with suppress(FileNotFoundError):
            return (self._layout.folder / name).open("rb", buffering=0)
        return None

    def fetch(self, descriptor: Descriptor, blobs: Path) -> Path:  # noqa: ARG002
        path = self._layout.blob_path(descriptor.digest)
        if not path.is_file():
            raise LayoutError(f"{self._place} lacks the blob {descriptor.digest}")
        return path


class _TarSource(_LayoutSource):
    def __init__(self, path: Path, tag: str, archive: tarfile.TarFile) -> None:
        super().__init__("tar", path, tag)
        self._archive = archive
        self._members = {member.name.removeprefix("./"): member for member in archive}

    def open_file(self, name: str) -> IO[bytes] | None:
        member = self._members.get(name)
        return self._archive.extractfile(member) if member and member.isreg() else None


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
            yield _FolderSource(path, tag)
            return
        with _open_tar(path) as archive:
            yield _TarSource(path, tag, archive)
        return
    _refuse_file(text)
    with open_registry(parse_reference(text), auth_file, is_hurried=is_hurried) as registry:
        yield RegistrySource(registry)


def _refuse_file(text: str) -> None:
    """Refuse what is meant as a file of this machine: no registry is asked for that."""
    if text.endswith(".tar"):
        raise NotFoundError(
            f"there is no file {text}",
            hint="An image in a registry is named HOST/NAME:TAG, a layout in a folder oci:FOLDER.",
        )
    if text.endswith(".zse"):
        raise UsageError(
            f"{text} names a model, not an image",
            hint=f"Build one around it: zse build-image {text} --name NAME --output tar:FILE",
        )


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


def platform_manifests(
    source: ImageSource, platform: str = "", *, error: type[ImageError] = LayoutError
) -> tuple[str, list[PlatformManifest]]:
    """Return the digest of an image's name, and the manifest of each platform, or of one.

    Raises:
        LayoutError: The documents are not those of an image; or another ``error``.
        BadReferenceError: The image exists, but not for this platform.
        DigestMismatchError: A document has other bytes than its digest says.
    """
    content = source.top()
    digest = digest_of(content)
    try:
        document: Json = json.loads(content)
        if "manifests" not in document:
            media_type = str(document.get("mediaType", MEDIA_TYPE_MANIFEST))
            own = Descriptor(media_type=media_type, digest=digest, size_bytes=len(content))
            return digest, [_parsed(source, own, document)]
        items = [Descriptor.from_json(item) for item in document["manifests"]]
        wanted = [item for item in items if not item.platform.startswith("unknown/")]
        if platform:
            wanted = [choose_platform(document, platform)]
        parsed = [_parsed(source, item, json.loads(source.document(item))) for item in wanted]
    except MALFORMED as problem:
        raise error(f"{digest} of {source.name} is not an image: {problem!r}") from problem
    return digest, parsed


def _parsed(source: ImageSource, descriptor: Descriptor, manifest: Json) -> PlatformManifest:
    where = Descriptor.from_json(manifest["config"])
    layers = tuple(Descriptor.from_json(item) for item in manifest["layers"])
    config = json.loads(source.document(where))
    _check_annotations(manifest)
    _check_config(config)
    return PlatformManifest(
        descriptor=descriptor,
        manifest=manifest,
        config=config,
        layers=layers,
        size_bytes=sum(blob.size_bytes for blob in (descriptor, where, *layers)),
    )


def _check_annotations(manifest: Json) -> None:
    _expect(manifest.get("annotations") or {}, dict)


def _check_config(config: Any) -> None:
    """Refuse, by a TypeError, a config whose parts are not of the types that its readers expect."""
    run = _expect(_expect(config, dict).get("config") or {}, dict)
    rootfs = _expect(config.get("rootfs") or {}, dict)
    for name in ("Labels", "ExposedPorts"):
        _expect(run.get(name) or {}, dict)
    for texts in (*map(run.get, ("Env", "Entrypoint", "Cmd")), rootfs.get("diff_ids")):
        for text in _expect(texts or [], list):
            _expect(text, str)
    for step in _expect(config.get("history") or [], list):
        _expect(step, dict)


def _expect(part: Any, kind: type) -> Any:
    if not isinstance(part, kind):
        raise TypeError(f"it holds {part!r:.80}, where a {kind.__name__} should be")
    return part
