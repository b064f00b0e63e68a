"""What an image says of itself, read from its documents alone: no layer is fetched."""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING

from zse.oci.errors import LayoutError
from zse.oci.image.facts import ImageFacts
from zse.oci.image.source import open_image, platform_manifests
from zse.oci.layout.manifest import MALFORMED, Descriptor
from zse.oci.statements.attestation import MEDIA_TYPE_SPDX
from zse.oci.statements.sbom import sbom_counts
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.oci.image.source import ImageSource, Json, PlatformManifest


@record
class LayerReport:
    """One layer as the manifest lists it, and what the config says made it."""

    digest: str
    media_type: str
    size_bytes: int
    comment: str


@record
class StatementReport:
    """A document that refers to the image."""

    artifact_type: str
    digest: str
    size_bytes: int


@record
class PlatformReport:
    """The image of one platform."""

    platform: str
    digest: str
    size_bytes: int
    created: str
    user: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    env: tuple[str, ...]
    ports: tuple[str, ...]
    facts: ImageFacts
    """What the labels say, read."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    layers: tuple[LayerReport, ...]
    statements: tuple[StatementReport, ...]
    sbom: Mapping[str, int] = field(default_factory=dict)
    """Things in the bill of materials, counted by kind; empty when the image has none."""


@record
class ImageReport:
    """An image; its digest is the index's when it has several platforms."""

    digest: str
    platforms: tuple[PlatformReport, ...]


def inspect_image(source: ImageSource, *, platform: str = "") -> ImageReport:
    """Describe an image: one platform of it, or all when none is named.

    Raises:
        ImageError: The image cannot be read.
    """
    top, chosen = _chosen(source, platform)
    return ImageReport(digest=top, platforms=tuple(_report(source, item) for item in chosen))


def read_image_facts(reference: str, *, auth_file: Path, is_hurried: bool = False) -> ImageFacts:
    """Read what an image says of itself: its first platform, since all are built for one model.

    Raises:
        ImageError: The image cannot be read.
        NotFoundError: There is no such file or folder.
    """
    with open_image(reference, auth_file=auth_file, is_hurried=is_hurried) as source:
        _, images = platform_manifests(source)
    return ImageFacts.from_labels(images[0].labels if images else {})


def read_sbom(source: ImageSource, *, platform: str = "") -> Json:
    """Return the bill of materials of one platform of an image, the first when none is named.

    Raises:
        ImageError: The image cannot be read, or nobody stored one beside it.
    """
    _, (image, *_) = _chosen(source, platform)
    statements = source.referrers(image.descriptor.digest)
    document = read_statement(source, statements, MEDIA_TYPE_SPDX)
    if document is None:
        raise LayoutError(
            f"{source.name} has no bill of materials beside {image.platform}",
            hint="It was built with --no-attest, or copied by a program that leaves them behind.",
        )
    return document


def _chosen(source: ImageSource, platform: str) -> tuple[str, list[PlatformManifest]]:
    """Return the image's digest, and one platform's manifest, or all of them."""
    top, found = platform_manifests(source)
    chosen = [item for item in found if platform in {"", item.platform}]
    if not chosen:
        has = ", ".join(item.platform for item in found)
        raise LayoutError(f"the image has no {platform}", hint=f"It has {has or 'none at all'}.")
    return top, chosen


def _report(source: ImageSource, image: PlatformManifest) -> PlatformReport:
    run: Json = image.config.get("config") or {}
    statements = source.referrers(image.descriptor.digest)
    sbom = read_statement(source, statements, MEDIA_TYPE_SPDX)
    return PlatformReport(
        platform=image.platform,
        digest=image.descriptor.digest,
        size_bytes=image.size_bytes,
        created=str(image.config.get("created", "")),
        user=str(run.get("User", "")),
        entrypoint=tuple(run.get("Entrypoint") or ()),
        command=tuple(run.get("Cmd") or ()),
        env=tuple(run.get("Env") or ()),
        ports=tuple(run.get("ExposedPorts") or ()),
        facts=ImageFacts.from_labels(image.labels),
        labels=image.labels,
        annotations=dict(image.manifest.get("annotations") or {}),
        layers=tuple(
            LayerReport(
                digest=layer.digest,
                media_type=layer.media_type,
                size_bytes=layer.size_bytes,
                comment=comment,
            )
            for layer, comment in zip(image.layers, _comments(image), strict=True)
        ),
        statements=tuple(
            StatementReport(
                artifact_type=item.artifact_type, digest=item.digest, size_bytes=item.size_bytes
            )
            for item in statements
        ),
        sbom=_counts(sbom or {}),
    )


def _counts(sbom: Json) -> dict[str, int]:
    try:
        return sbom_counts(sbom)
    except MALFORMED as error:
        raise LayoutError(f"the bill of materials cannot be read: {error!r:.200}") from error


def _comments(image: PlatformManifest) -> list[str]:
    """Return what made each layer; history counts only steps that made one."""
    steps = [step for step in image.config.get("history") or () if not step.get("empty_layer")]
    words = [str(step.get("created_by", "")).removeprefix("zse: ") for step in steps]
    return words if len(words) == len(image.layers) else [""] * len(image.layers)


def read_statement(
    source: ImageSource, statements: list[Descriptor], artifact_type: str
) -> Json | None:
    """Return the first document of a type that refers to an image, or None."""
    for item in statements:
        if item.artifact_type != artifact_type:
            continue
        try:
            manifest: Json = json.loads(source.document(item))
            layer = Descriptor.from_json(manifest["layers"][0])
            document: Json = json.loads(source.document(layer))
        except MALFORMED as error:
            raise LayoutError(f"the {artifact_type} {item.digest} cannot be read") from error
        return document
    return None
