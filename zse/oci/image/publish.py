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
        content = image.layout.read_blob(attestation.manifest.digest)
        push_referrer(registry, content, attestation.manifest, attestation.subject.digest)
    _push(registry, image.layout, image.top, registry.reference.identifier)


def _push(registry: Registry, layout: ImageLayout, item: Descriptor, identifier: str) -> None:
    registry.push_manifest(identifier, layout.read_blob(item.digest), item.media_type)


def push_referrer(registry: Registry, content: bytes, manifest: Descriptor, subject: str) -> None:
    """Push a document about a manifest, and list it where the registry does not do that itself.

    Raises:
        RegistryError: The registry refused it.
    """
    if registry.push_manifest(manifest.digest, content, manifest.media_type):
        return
    others = [it for it in registry.tagged_referrers(subject) if it.digest != manifest.digest]
    index = build_index([*others, manifest], annotations={})
    registry.push_manifest(referrers_tag(subject), index, MEDIA_TYPE_INDEX)
