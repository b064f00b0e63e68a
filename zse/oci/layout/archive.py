"""An image as one tar file, which `podman load`, `docker load`, skopeo and containerd take.

It is an OCI layout with one image, and beside its index stands docker's own ``manifest.json``, as
`docker save` writes it. podman 4 loads a layout only when its index lists nothing but the image:
what is stated about the image is listed in an index of its own, which an annotation names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.oci.layout.folder import LAYOUT_MARKER
from zse.oci.layout.index import REFERENCE_NAME, REFERRERS, parse_manifest
from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, build_index, canonical_json
from zse.oci.layout.tar import Entry, directory, file_of_bytes, file_of_path, write_tar
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zse.oci.layout.folder import ImageLayout
    from zse.oci.registry.reference import Reference

_IMAGE_NAME = "io.containerd.image.name"
"""The annotation that holds the whole name, by which podman and containerd list the image."""


def write_archive(
    layout: ImageLayout,
    top: Descriptor,
    images: Sequence[Descriptor],
    blobs: Sequence[str],
    name: Reference,
    target: Path,
    referrers: Sequence[Descriptor] = (),
) -> None:
    """Write one image of a layout as a tar file.

    Args:
        layout: Holds every blob.
        top: What the name stands for: a manifest, or the index of several.
        images: The manifests, one a platform; docker's classic store takes the first.
        blobs: Digests of what the archive holds beside ``top``.
        name: The image's name, with a tag.
        target: The file; replaced when it is there.
        referrers: Manifests of what is stated about the image.

    Raises:
        DiskFullError: The target's disk has no room left.
        LayoutError: The layout lacks a blob.
    """
    annotations = {**top.annotations, REFERENCE_NAME: name.tag, _IMAGE_NAME: str(name)}
    digests = [top.digest, *blobs]
    if referrers:
        listed = layout.add(MEDIA_TYPE_INDEX, build_index(referrers, annotations={})).digest
        annotations[REFERRERS] = listed
        digests.append(listed)
    index = build_index([replace(top, annotations=annotations)])
    docker = canonical_json(_docker_manifest(layout, images[0], name))
    with LocalWriter(target) as stream:
        write_tar(_entries(layout, index, docker, digests), stream)


def _docker_manifest(
    layout: ImageLayout, image: Descriptor, name: Reference
) -> list[dict[str, Any]]:
    """Return what docker's classic store reads: paths of config and layers, and the name."""
    config, layers = parse_manifest(layout.read_blob(image.digest))
    paths = [_member(layer.digest) for layer in layers]
    return [{"Config": _member(config.digest), "RepoTags": [str(name)], "Layers": paths}]


def _entries(
    layout: ImageLayout, index: bytes, docker: bytes, digests: Sequence[str]
) -> Iterator[Entry]:
    yield file_of_bytes("oci-layout", LAYOUT_MARKER)
    yield file_of_bytes("index.json", index)
    yield file_of_bytes("manifest.json", docker)
    yield directory("blobs/sha256")
    for digest in dict.fromkeys(digests):
        yield file_of_path(_member(digest), layout.blob_path(digest))


def _member(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/', 1)}"
