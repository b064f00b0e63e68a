"""OCI image layouts: a folder of blobs named by digest, and an index that names images."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.oci.errors import DigestMismatchError, LayoutError
from zse.oci.layout.index import REFERENCE_NAME, parse_index
from zse.oci.layout.manifest import (
    MALFORMED,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    build_index,
    build_manifest,
    digest_of,
    hex_of,
    subject_of,
)
from zse.settings import Settings
from zse.store import fetch
from zse.store.local import LocalWriter
from zse.store.locks import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

MEDIA_TYPE_EMPTY = "application/vnd.oci.empty.v1+json"
LAYOUT_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class ImageLayout:
    """A layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs" / "sha256"
        self._marker = folder / "oci-layout"

    @classmethod
    def open(cls, folder: Path) -> ImageLayout:
        """Open a layout that exists.

        Raises:
            LayoutError: The folder is not a layout.
        """
        if not (folder / "oci-layout").is_file() or not (folder / "index.json").is_file():
            raise LayoutError(f"{folder} is not an OCI image layout")
        return cls(folder)

    def create(self) -> None:
        self.blobs.mkdir(parents=True, exist_ok=True)
        if not self._marker.exists():
            _write(self._marker, LAYOUT_MARKER)
        if not (self.folder / "index.json").exists():
            self._write_index([])

    def blob_path(self, digest: str) -> Path:
        """Return where a blob lies, or would lie.

        Raises:
            LayoutError: The digest is not a SHA-256.
        """
        return self.blobs / hex_of(digest)

    def source(self, blob: Descriptor) -> Callable[[], Path]:
        """Return where a push takes a blob from, when it comes to it."""
        return lambda: self.blob_path(blob.digest)

    def read_blob(self, digest: str) -> bytes:
        """Return a small blob after checking its digest.

        Raises:
            LayoutError: The layout lacks it.
            DigestMismatchError: Its bytes have another digest.
        """
        path = self.blob_path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise LayoutError(f"{self.folder} lacks the blob {digest}") from None
        if digest_of(data) != digest:
            raise DigestMismatchError(f"{path} does not have the digest it is named by")
        return data

    def add(self, media_type: str, data: bytes, **said: Any) -> Descriptor:
        """Store a small blob; what is said of it beside its digest and its length are fields."""
        digest = digest_of(data)
        _write(self.blob_path(digest), data)
        return Descriptor(media_type=media_type, digest=digest, size_bytes=len(data), **said)

    def add_artifact(
        self,
        artifact_type: str,
        layers: Sequence[Descriptor],
        annotations: Mapping[str, str],
        subject: Descriptor | None = None,
    ) -> tuple[Descriptor, list[Descriptor]]:
        """Store the manifest of what is no image; return it and the blobs that it names."""
        config = self.add(MEDIA_TYPE_EMPTY, b"{}")
        about = {"subject": subject.to_json()} if subject else {}
        content = build_manifest(config, layers, annotations, artifactType=artifact_type, **about)
        return self.add(MEDIA_TYPE_MANIFEST, content), [config, *layers]

    def add_file(self, source: Path, digest: str) -> None:
        """Store a file as the blob of a known digest, sharing its bytes where that is possible.

        Raises:
            DiskFullError: The layout's disk has no room left.
            StoreError: The file cannot be copied, or has another digest.
        """
        target = self.blob_path(digest)
        try:
            os.link(source, target)
        except FileExistsError:
            return
        except OSError:  # another disk, or one without hard links
            fetch(source, target, Settings(), sha256=hex_of(digest))

    def add_image(
        self, manifest: Descriptor, tag: str, referrers: Sequence[Descriptor] = ()
    ) -> None:
        """List an image under a tag, and what refers to it; an image of the same tag is replaced.

        What referred to the image that is replaced goes with it. Builds that list their images in
        one layout at the same time wait for each other.
        """
        with locked(self._marker):
            self._write_index(self._items_with(manifest, tag, referrers))

    def _items_with(
        self, manifest: Descriptor, tag: str, referrers: Sequence[Descriptor]
    ) -> list[Descriptor]:
        items = self.manifests()
        gone = {item.digest for item in items if item.annotations.get(REFERENCE_NAME) == tag}
        gone |= {child for digest in gone for child in self._said(digest)[0]}
        gone -= {
            item.digest for item in items if item.annotations.get(REFERENCE_NAME) not in {tag, None}
        }
        kept = [
            item
            for item in items
            if item.annotations.get(REFERENCE_NAME) != tag
            and not (item.artifact_type and self._said(item.digest)[1] in gone)
        ]
        named = replace(manifest, annotations={**manifest.annotations, REFERENCE_NAME: tag})
        added = {item.digest for item in referrers}
        kept = [item for item in kept if item.digest not in added]
        return [*kept, named, *referrers]

    def manifests(self) -> list[Descriptor]:
        """Return what the index lists: images, and artifacts that refer to them.

        Raises:
            LayoutError: The index cannot be read.
        """
        try:
            content = (self.folder / "index.json").read_bytes()
        except OSError as error:
            raise LayoutError(f"{self.folder}/index.json cannot be read: {error}") from error
        return parse_index(content, place=str(self.folder))

    def _said(self, digest: str) -> tuple[list[str], str]:
        """Return the manifests that a document lists and its subject; a broken one has neither."""
        try:
            content = self.read_blob(digest)
            children = [str(item["digest"]) for item in json.loads(content).get("manifests", ())]
        except (LayoutError, DigestMismatchError, *MALFORMED):
            return [], ""
        return children, subject_of(content)

    def _write_index(self, manifests: Sequence[Descriptor]) -> None:
        _write(self.folder / "index.json", build_index(manifests))


def _write(path: Path, data: bytes) -> None:
    with LocalWriter(path) as file:
        file.write(data)
