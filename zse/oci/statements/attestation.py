"""Documents about an image, stored beside it: manifests whose subject is the image's manifest.

Registries list them by the referrers API, or under a tag made from the image's digest; layouts list
them in their index. Nothing in them depends on the clock or the host, so they have digests that can
be expected, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.oci.layout.manifest import MEDIA_TYPE_MANIFEST, Descriptor, canonical_json
from zse.oci.statements.provenance import PROVENANCE_PREDICATE, build_provenance
from zse.oci.statements.sbom import build_sbom
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.oci.image.options import BuildOptions
    from zse.oci.image.platform import PlatformImage
    from zse.oci.layout.folder import ImageLayout
    from zse.oci.recipe import Recipe

MEDIA_TYPE_SPDX = "application/spdx+json"
MEDIA_TYPE_INTOTO = "application/vnd.in-toto+json"
MEDIA_TYPE_EMPTY = "application/vnd.oci.empty.v1+json"
PREDICATE_ANNOTATION = "in-toto.io/predicate-type"
_EMPTY = b"{}"


@record
class Attestation:
    """A document about an image: its manifest, and the blobs that the manifest names."""

    manifest: Descriptor
    subject: Descriptor
    blobs: tuple[Descriptor, ...]


def attest(
    name: str, recipe: Recipe, options: BuildOptions, layout: ImageLayout, image: PlatformImage
) -> list[Attestation]:
    """Write the bill of materials and the provenance of an image into a layout.

    Args:
        name: The image's repository, without its registry.
        recipe: What it was built from.
        options: What it was built with.
        layout: Gets the documents.
        image: The image.
    """
    sbom = build_sbom(
        name,
        image.manifest.digest,
        image.platform,
        image.materials,
        epoch_seconds=options.epoch_seconds,
    )
    provenance = build_provenance(name, recipe, options, image)
    return [
        _store(layout, image.manifest, MEDIA_TYPE_SPDX, sbom, {}),
        _store(
            layout,
            image.manifest,
            MEDIA_TYPE_INTOTO,
            provenance,
            {PREDICATE_ANNOTATION: PROVENANCE_PREDICATE},
        ),
    ]


def _store(
    layout: ImageLayout,
    subject: Descriptor,
    artifact_type: str,
    document: object,
    annotations: Mapping[str, str],
) -> Attestation:
    config = _add(layout, MEDIA_TYPE_EMPTY, _EMPTY)
    layer = _add(layout, artifact_type, canonical_json(document))
    bare = Descriptor(
        media_type=subject.media_type, digest=subject.digest, size_bytes=subject.size_bytes
    )
    content = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE_MANIFEST,
            "artifactType": artifact_type,
            "config": config.to_json(),
            "layers": [layer.to_json()],
            "subject": bare.to_json(),
            "annotations": dict(annotations),
        }
    )
    manifest = Descriptor(
        media_type=MEDIA_TYPE_MANIFEST,
        digest=layout.add_bytes(content),
        size_bytes=len(content),
        annotations=annotations,
        artifact_type=artifact_type,
    )
    return Attestation(manifest=manifest, subject=bare, blobs=(config, layer))


def _add(layout: ImageLayout, media_type: str, content: bytes) -> Descriptor:
    return Descriptor(
        media_type=media_type, digest=layout.add_bytes(content), size_bytes=len(content)
    )
