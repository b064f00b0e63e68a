"""A ``.zse`` file to and from a registry."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.oci.layout.manifest import (
    INDEX_TYPES,
    MALFORMED,
    MEDIA_TYPE_CONFIG,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    choose_platform,
    digest_of,
)
from zse.oci.registry.client import open_registry
from zse.oci.registry.reference import parse_reference
from zse.oci.registry.upload import push_blobs
from zse.oci.weights.artifact import (
    CHUNK_BYTES,
    PLATFORMS,
    described,
    documents,
    parse_manifest,
    split_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.oci.registry.client import Registry
    from zse.oci.registry.reference import Reference
    from zse.oci.weights.artifact import WeightsImage

SCHEME = "oci://"


def reference_of(text: str) -> Reference:
    """Return the reference in ``oci://HOST/REPOSITORY[:TAG][@DIGEST]``.

    Raises:
        BadReferenceError: It is none.
    """
    return parse_reference(text.removeprefix(SCHEME))


def push_weights(
    path: Path,
    file_name: str,
    reference: Reference,
    auth_file: Path,
    *,
    report: Callable[[str], None],
    chunk_bytes: int = CHUNK_BYTES,
) -> str:
    """Push a file as an image, the index last; return the index's digest.

    Layers that the repository has are not sent again: a push that was stopped goes on with those
    that are missing.

    Raises:
        UsageError: The reference names a digest, or the file's name is none for an image.
        RegistryAuthError: The registry does not let this user push here.
        RegistryError: It cannot be reached, or refuses.
    """
    if reference.digest:
        raise UsageError(
            f"{reference} names a digest, which only what is pushed can have", hint="Name a tag."
        )
    tars = split_file(path, file_name, chunk_bytes)
    with open_registry(reference, auth_file) as registry:
        registry.check_push()  # before gigabytes are read
        report(f"reading {file_name} for its digest")
        image = described(tars, file_name)
        push_blobs(
            registry,
            [
                (piece.layer, lambda tar=tar: tar)  # type: ignore[misc]
                for piece, tar in zip(image.pieces, tars, strict=True)
            ],
            mount_from={},
            report=report,
        )
        return _push_documents(registry, image, reference, report)


def _push_documents(
    registry: Registry, image: WeightsImage, reference: Reference, report: Callable[[str], None]
) -> str:
    index, manifests, configs = documents(image)
    with tempfile.TemporaryDirectory(prefix="zse-oci-") as folder:
        blobs = []
        for number, config in enumerate(configs):
            place = Path(folder) / str(number)
            place.write_bytes(config)
            descriptor = Descriptor(
                media_type=MEDIA_TYPE_CONFIG, digest=digest_of(config), size_bytes=len(config)
            )
            blobs.append((descriptor, lambda place=place: place))
        push_blobs(registry, blobs, mount_from={}, report=report)
    for descriptor, manifest in manifests:
        registry.push_manifest(descriptor.digest, manifest, MEDIA_TYPE_MANIFEST)
    digest = digest_of(index)
    registry.push_manifest(reference.identifier, index, MEDIA_TYPE_INDEX)
    return digest


def read_weights(registry: Registry) -> tuple[WeightsImage, str]:
    """Return what a reference names, and the digest of its manifest.

    Raises:
        LayoutError: It is no image of a ``.zse`` file.
        RegistryError: The registry has no such image, or refuses.
    """
    where = str(registry.reference)
    content = registry.manifest(registry.reference.identifier)
    if _is_index(content):
        chosen = choose_platform(json.loads(content), PLATFORMS[0])
        content = registry.manifest(chosen.digest)
    return parse_manifest(content, where), digest_of(content)


def _is_index(content: bytes) -> bool:
    try:
        document = json.loads(content)
    except MALFORMED:
        return False
    return isinstance(document, dict) and document.get("mediaType") in INDEX_TYPES
