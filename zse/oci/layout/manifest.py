"""The two JSON documents of an image: its config and its manifest.

Both are canonical JSON, so that their digests depend on what they say and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from zse.errors import UsageError
from zse.oci.errors import BadReferenceError, LayoutError
from zse.oci.layout.layer import MEDIA_TYPE_TAR, Layer
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEDIA_TYPE_CONFIG = "application/vnd.oci.image.config.v1+json"
MEDIA_TYPE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_TYPE_INDEX = "application/vnd.oci.image.index.v1+json"
MEDIA_TYPE_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MEDIA_TYPE_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEX_TYPES = frozenset({MEDIA_TYPE_INDEX, MEDIA_TYPE_DOCKER_INDEX})

# Docker names its layer types differently for the same bytes; an OCI manifest says them in OCI.
_OCI_LAYER_TYPES = {
    "application/vnd.docker.image.rootfs.diff.tar": MEDIA_TYPE_TAR,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": f"{MEDIA_TYPE_TAR}+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd": f"{MEDIA_TYPE_TAR}+zstd",
}
MALFORMED = (
    ValueError, OverflowError, KeyError, IndexError, TypeError, AttributeError, RecursionError
)  # fmt: skip
"""What reading a JSON document of a stranger raises where it has another form than expected."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@record
class Descriptor:
    """A reference to a blob: what it is, its digest and its length."""

    media_type: str
    digest: str
    size_bytes: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    """``os/architecture``, in an index."""
    artifact_type: str = ""
    """What a manifest that refers to another one is."""

    def to_json(self) -> dict[str, Any]:
        system, _, architecture = self.platform.partition("/")
        optional = {
            "annotations": dict(self.annotations),
            "platform": {"architecture": architecture, "os": system} if self.platform else {},
            "artifactType": self.artifact_type,
        }
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size_bytes,
            **{key: value for key, value in optional.items() if value},
        }

    @classmethod
    def bare(cls, blob: Layer | Descriptor) -> Descriptor:
        """Return what a manifest says of a blob: no platform, no annotations."""
        return cls(media_type=blob.media_type, digest=blob.digest, size_bytes=blob.size_bytes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Descriptor:
        """Read the JSON form; layer types are translated to OCI."""
        media_type = str(data["mediaType"])
        platform: Mapping[str, Any] = data.get("platform") or {}
        return cls(
            media_type=_OCI_LAYER_TYPES.get(media_type, media_type),
            digest=str(data["digest"]),
            size_bytes=int(data["size"]),
            annotations=dict(data.get("annotations") or {}),
            platform=f"{platform.get('os')}/{platform.get('architecture')}" if platform else "",
            artifact_type=str(data.get("artifactType") or ""),
        )


def canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def timestamp(epoch_seconds: int) -> str:
    """Write a time as documents hold it, in UTC.

    Raises:
        UsageError: It is after the year 9999.
    """
    try:
        return datetime.fromtimestamp(epoch_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"{epoch_seconds} seconds since 1970 is no time that an image can have",
            hint="Set SOURCE_DATE_EPOCH to a time before the year 10000, or unset it.",
        ) from error


def hex_of(digest: str) -> str:
    """Return the hexadecimal part of a digest, which is safe to name a file by.

    Raises:
        LayoutError: The digest is not a SHA-256.
    """
    if not _DIGEST.fullmatch(digest):
        raise LayoutError(f"{digest!r} is not a sha256 digest")
    return digest.partition(":")[2]


def build_config(
    base: Mapping[str, Any],
    layers: Sequence[Layer],
    settings: Mapping[str, Any],
    *,
    platform: str,
    epoch_seconds: int,
) -> bytes:
    """Return the image config: that of the base, if there is one, with our layers on top.

    Args:
        base: Config of the base image; empty for none.
        layers: What is put on top of the base, in order.
        settings: How the image starts: its ``config``, but ``Env`` as name -> value.
        platform: ``os/architecture``.
        epoch_seconds: Creation time, seconds since 1970.
    """
    created = timestamp(epoch_seconds)
    system, _, architecture = platform.partition("/")
    rootfs: Mapping[str, Any] = base.get("rootfs") or {}
    config: dict[str, Any] = {
        "architecture": architecture,
        "os": system,
        "created": created,
        "config": _run_config(base.get("config") or {}, settings),
        "rootfs": {
            "type": "layers",
            "diff_ids": [*rootfs.get("diff_ids", ()), *(layer.diff_id for layer in layers)],
        },
        "history": [
            *(base.get("history") or ()),
            *({"created": created, "created_by": f"zse: {layer.comment}"} for layer in layers),
        ],
    }
    return canonical_json(config)


def build_manifest(
    config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str], **more: object
) -> bytes:
    """Return the manifest of an image, or with ``artifactType`` and ``subject`` of an artifact."""
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE_MANIFEST,
            "config": config.to_json(),
            "layers": [layer.to_json() for layer in layers],
            "annotations": dict(annotations),
            **more,
        }
    )


def build_index(manifests: Sequence[Descriptor], **more: object) -> bytes:
    items = [manifest.to_json() for manifest in manifests]
    return canonical_json(
        {"schemaVersion": 2, "mediaType": MEDIA_TYPE_INDEX, "manifests": items, **more}
    )


def choose_platform(index: Mapping[str, Any], platform: str) -> Descriptor:
    """Return the manifest of an index that fits a platform.

    Raises:
        BadReferenceError: The image exists, but not for this platform.
        LayoutError: It is no index.
    """
    system, _, architecture = platform.partition("/")
    found = []
    try:
        for item in index.get("manifests", ()):
            wanted: Mapping[str, Any] = item.get("platform") or {}
            of = wanted.get("os"), wanted.get("architecture")
            if not wanted or of == (system, architecture):
                return Descriptor.from_json(item)
            found.append(f"{of[0]}/{of[1]}")
    except MALFORMED as error:
        raise LayoutError(
            f"the index of an image cannot be read: {error!r:.200}",
            hint="Push the image again, or ask the registry's operator.",
        ) from None
    raise BadReferenceError(
        f"the base image has no {platform}; it has {', '.join(found) or 'no platform at all'}",
        hint="Choose another base.",
    )


def subject_of(manifest: bytes) -> str:
    """Return the digest of what a manifest refers to; empty when it refers to nothing."""
    try:
        return str((json.loads(manifest).get("subject") or {}).get("digest", ""))
    except MALFORMED:
        return ""


def _run_config(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge how the base starts with how we start; a base's command makes no sense any more."""
    lines = (line.partition("=") for line in base.get("Env") or ())
    env = {"PATH": DEFAULT_PATH, **{name: value for name, _, value in lines}, **settings["Env"]}
    return {
        **{key: value for key, value in base.items() if key != "Cmd"},
        **{key: value for key, value in settings.items() if value},
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        "Labels": {**(base.get("Labels") or {}), **settings["Labels"]},
    }
