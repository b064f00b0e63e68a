"""Kernel packs as an OCI artifact: one manifest for one state of the kernels' sources.

Its layers are the pack files as they are, one an architecture, and its tag is the digest of the
sources, so that who has a zse knows what to ask for. Times and hosts are not in it: the same packs
give the same digest.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError
from zse.kernels.errors import KernelPackError
from zse.kernels.find import SUFFIX
from zse.kernels.pack import KernelPack
from zse.kernels.targets import target_named
from zse.oci.errors import LayoutError
from zse.oci.image.source import open_image
from zse.oci.layout.folder import ImageLayout
from zse.oci.layout.index import split_place
from zse.oci.layout.manifest import Descriptor
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.oci.registry.upload import push_blobs
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.oci.image.source import ImageSource

ARTIFACT_TYPE = "application/vnd.zse.kernels.v1"
PACK_TYPE = "application/vnd.zse.kernel-pack.v1"
SOURCES = "dev.zse.kernels.sources"
"""Annotation: the digest of the kernels' sources."""
_TITLE = "org.opencontainers.image.title"


def is_artifact(text: str) -> bool:
    """Whether words name an artifact, ``oci:DIR[:TAG]`` or REGISTRY/REPOSITORY, not a path."""
    head, slash, _ = text.partition("/")
    if text.startswith(("oci:", "tar:")):
        return True
    is_host = "." in head.strip(".") or ":" in head or head == "localhost"
    return bool(slash) and is_host and not Path(text).exists()


@record
class PackArtifact:
    """The packs of an artifact that is open."""

    name: str
    layers: dict[str, Descriptor]
    """Architecture -> its pack."""
    source: ImageSource

    def read(self, gpu: str) -> bytes:
        """Return the pack of an architecture, every byte of it checked.

        Raises:
            NotFoundError: It holds none.
            DigestMismatchError: Its bytes are not those that were pushed.
            KernelPackError: It is no whole pack, or one of another architecture.
        """
        if gpu not in self.layers:
            raise NotFoundError(
                f"{self.name} holds no kernel pack for {gpu}",
                hint=f"It holds {', '.join(self.layers) or 'none'}.",
            )
        data = self.source.document(self.layers[gpu])
        pack = KernelPack.open(data)
        pack.verify()
        if pack.target != gpu:
            raise KernelPackError(f"{self.name} gives a pack for {pack.target} out as {gpu}")
        return data


@contextmanager
def open_artifact(
    place: str, sources: str, *, auth_file: Path, is_hurried: bool = False
) -> Iterator[PackArtifact]:
    """Open the packs of one state of the sources.

    Args:
        place: ``oci:DIR[:TAG]``, ``tar:FILE[:TAG]`` or ``REGISTRY/REPOSITORY[:TAG]``.
        sources: Digest of the kernels' sources: the tag, where the place names none.
        auth_file: docker's config.json.
        is_hurried: Give up soon where nobody answers.

    Raises:
        ImageError: Any of its subclasses: it is not there, or cannot be read.
        KernelPackError: It is no artifact of kernel packs.
    """
    with open_image(_tagged(place, sources), auth_file=auth_file, is_hurried=is_hurried) as source:
        yield PackArtifact(name=place, layers=_layers(place, source.top()), source=source)


def push_artifact(
    place: str, packs: Sequence[Path], *, auth_file: Path, report: Callable[[str], None]
) -> str:
    """Store packs of the same sources as one artifact; return its digest.

    Args:
        place: ``oci:DIR[:TAG]`` or ``REGISTRY/REPOSITORY[:TAG]``; the tag is the digest of the
            packs' sources where none is named.
        packs: One an architecture.
        auth_file: docker's config.json.

    Raises:
        KernelPackError: A pack is damaged, or they are of several sources.
        RegistryError: The registry refused.
    """
    checked = _checked(packs)
    sources = checked[0].provenance["sources"]
    if place.startswith("oci:"):
        folder, tag = _folder_and_tag(place.removeprefix("oci:"))
        layout = ImageLayout(folder)
        layout.create()
        manifest, _ = _write(layout, checked)
        layout.add_image(manifest, tag or sources)
        return manifest.digest
    target = parse_reference(_tagged(place, sources))
    with tempfile.TemporaryDirectory(prefix="zse-kernels-") as scratch:
        layout = ImageLayout(Path(scratch))
        layout.create()
        manifest, blobs = _write(layout, checked)
        with open_registry(target, auth_file) as registry:
            items = [(blob, layout.source(blob)) for blob in blobs]
            push_blobs(registry, items, mount_from={}, report=report)
            content = layout.read_blob(manifest.digest)
            registry.push_manifest(target.identifier, content, manifest.media_type)
    return manifest.digest


def _checked(packs: Sequence[Path]) -> list[KernelPack]:
    opened = sorted(
        (KernelPack.open(path) for path in packs), key=lambda pack: target_named(pack.target).number
    )
    for pack in opened:
        pack.verify()
    found = {pack.provenance["sources"] for pack in opened}
    if len(found) != 1 or len({pack.target for pack in opened}) != len(opened):
        raise KernelPackError(
            f"{len(opened)} packs of {len(found)} states of the kernels' sources",
            hint="Name packs of one zse, one an architecture.",
        )
    return opened


def _write(layout: ImageLayout, packs: Sequence[KernelPack]) -> tuple[Descriptor, list[Descriptor]]:
    layers = []
    for pack in packs:
        title = {_TITLE: f"{pack.target}{SUFFIX}"}
        layers.append(layout.add(PACK_TYPE, Path(pack.name).read_bytes(), annotations=title))
    return layout.add_artifact(ARTIFACT_TYPE, layers, {SOURCES: packs[0].provenance["sources"]})


def _layers(name: str, top: bytes) -> dict[str, Descriptor]:
    try:
        document = json.loads(top)
        if document["artifactType"] != ARTIFACT_TYPE:
            raise KernelPackError(f"{name} is {document['artifactType']!r}, no kernel packs")
        layers = [Descriptor.from_json(item) for item in document["layers"]]
        return {layer.annotations[_TITLE].removesuffix(SUFFIX): layer for layer in layers}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KernelPackError(
            f"{name} holds no kernel packs: {error!r}",
            hint="`zse kernels push` makes such a place.",
        ) from error


def _tagged(place: str, tag: str) -> str:
    kind, colon, rest = place.partition(":")
    if kind in {"oci", "tar"} and colon:
        return place if split_place(rest)[1] else f"{place}:{tag}"
    reference = parse_reference(place)
    return place if reference.tag or reference.digest else f"{place}:{tag}"


def _folder_and_tag(place: str) -> tuple[Path, str]:
    """Split ``DIR[:TAG]`` of a folder that need not be there."""
    folder, colon, tag = place.rpartition(":")
    if not place:
        raise LayoutError("oci: names no folder", hint="Write oci:DIR.")
    return (Path(folder), tag) if colon and not Path(place).exists() else (Path(place), "")
