"""Documents about an image, stored beside it: manifests whose subject is the image's manifest.

Registries list them by the referrers API, or under a tag made from the image's digest; layouts list
them in their index. Nothing in them depends on the clock or the host, so they have digests that can
be expected, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.oci.layout.manifest import Descriptor, canonical_json
from zse.oci.statements.provenance import PROVENANCE_PREDICATE, build_provenance
from zse.oci.statements.sbom import build_sbom
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.oci.image.options import Build
    from zse.oci.image.platform import PlatformImage
    from zse.oci.layout.folder import ImageLayout

MEDIA_TYPE_SPDX = "application/spdx+json"
MEDIA_TYPE_INTOTO = "application/vnd.in-toto+json"
PREDICATE_ANNOTATION = "in-toto.io/predicate-type"


@record
class Attestation:
    """A document about an image: its manifest, and the blobs that the manifest names."""

    manifest: Descriptor
    subject: Descriptor
    own: tuple[Descriptor, ...]


def attest(name: str, build: Build, image: PlatformImage) -> list[Attestation]:
    """Write the bill of materials and the provenance of an image into its layout."""
    sbom = build_sbom(name, image, epoch_seconds=build.options.epoch_seconds)
    provenance = build_provenance(name, build, image)
    said = {PREDICATE_ANNOTATION: PROVENANCE_PREDICATE}
    return [
        _store(build.layout, image.manifest, MEDIA_TYPE_SPDX, sbom, {}),
        _store(build.layout, image.manifest, MEDIA_TYPE_INTOTO, provenance, said),
    ]


def _store(
    layout: ImageLayout,
    image: Descriptor,
    artifact_type: str,
    document: object,
    annotations: Mapping[str, str],
) -> Attestation:
    subject = Descriptor.bare(image)
    content = layout.add(artifact_type, canonical_json(document))
    manifest, blobs = layout.add_artifact(artifact_type, [content], annotations, subject)
    manifest = replace(manifest, annotations=annotations, artifact_type=artifact_type)
    return Attestation(manifest=manifest, subject=subject, own=tuple(blobs))
