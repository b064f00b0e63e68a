"""Brings an image with everything it consists of into a repository.

Blobs first, then the manifests from the inside out, the tag last: whoever pulls by the tag finds
either the old image or all of the new one.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from zse.oci.layout.manifest import MEDIA_TYPE_INDEX, Descriptor, build_index
from zse.oci.registry.client import referrers_tag
from zse.oci.registry.upload import push_blobs
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.oci.image.platform import PlatformImage
    from zse.oci.layout.folder import ImageLayout
    from zse.oci.registry.client import Registry
    from zse.oci.registry.upload import Source
    from zse.oci.statements.attestation import Attestation


@record
class WholeImage:
    """An image of one platform or several, and what is stated about it."""

    layout: ImageLayout
    """Holds what was built; the layers of bases lie elsewhere."""
    top: Descriptor
    """What its name stands for: the only manifest, or the index."""
    platforms: Sequence[PlatformImage]
    attestations: Sequence[Attestation]

    @property
    def own(self) -> list[Descriptor]:
        """The blobs in the layout that its manifests name."""
        parts = [*(x.own for x in self.platforms), *(x.own for x in self.attestations)]
        return list(chain.from_iterable(parts))


def publish(registry: Registry, image: WholeImage, report: Callable[[str], None]) -> None:
    """Push images, what is stated about them, and the tag that the registry was opened with.

    Raises:
        RegistryError: The registry refused something.
    """
    mounts: dict[str, str] = {}
    blobs: dict[str, tuple[Descriptor, Source]] = {}
    for platform in image.platforms:
        host, repository = platform.base.repository
        for blob in platform.base.layers:
            blobs[blob.digest] = (blob, partial(platform.base.fetch, blob))
            if host == registry.reference.host:
                mounts[blob.digest] = repository
    blobs |= {blob.digest: (blob, image.layout.source(blob)) for blob in image.own}
    push_blobs(registry, list(blobs.values()), mount_from=mounts, report=report)
    for platform in image.platforms:
        _push(registry, image.layout, platform.manifest, platform.manifest.digest)
    for attestation in image.attestations:
        _push_referrer(registry, image.layout, attestation)
    _push(registry, image.layout, image.top, registry.reference.identifier)


def _push(registry: Registry, layout: ImageLayout, item: Descriptor, identifier: str) -> bool:
    """Push a manifest; tell whether the registry took note of its subject."""
    content = layout.read_blob(item.digest)
    return registry.push_manifest(identifier, content, item.media_type)


def _push_referrer(registry: Registry, layout: ImageLayout, attestation: Attestation) -> None:
    """Push a document about an image, and list it where the registry does not do that itself."""
    if _push(registry, layout, attestation.manifest, attestation.manifest.digest):
        return
    tag = referrers_tag(attestation.subject.digest)
    listed = registry.tagged_referrers(attestation.subject.digest)
    others = [item for item in listed if item.digest != attestation.manifest.digest]
    content = build_index([*others, attestation.manifest], annotations={})
    registry.push_manifest(tag, content, MEDIA_TYPE_INDEX)
