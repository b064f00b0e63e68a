"""Checks that an image is what it says: its digests, what is stated about it, its locks, its base.

Layers are read as streams, hashed as they are stored and as they unpack; none is kept. All problems
are collected, so that one run names them all.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import zstandard

from zse.oci.errors import DigestMismatchError, LayoutError, RegistryError
from zse.oci.image.inspect import read_statement
from zse.oci.image.source import platform_manifests
from zse.oci.image.verify_content import check_base, check_locks, check_statements, is_ours
from zse.oci.layout.manifest import MALFORMED, subject_of
from zse.oci.statements.attestation import MEDIA_TYPE_INTOTO, MEDIA_TYPE_SPDX
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from zse.oci.image.source import ImageSource, PlatformManifest
    from zse.oci.layout.manifest import Descriptor


@record
class Expectations:
    """What the image is held against, beside itself."""

    locks: Path | None = None
    """Folder of lock files that every dependency must be in; None for none."""
    base: tuple[str, ...] = ()
    """Digests of the base's manifests, one a platform; empty for any base."""
    base_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Manifest's digest -> its layers, as far as they are known."""


@dataclass(kw_only=True)
class Verification:
    """What was checked, and what is wrong."""

    digest: str = ""
    checked_blobs: int = 0
    checked_bytes: int = 0
    checks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify_image(
    source: ImageSource, expected: Expectations, report: Callable[[str], None]
) -> Verification:
    """Check an image; what is wrong stands in the result.

    Raises:
        ImageError: The image cannot be read at all.
    """
    result = Verification()
    result.digest, images = platform_manifests(source)
    seen: set[str] = set()
    for image in images:
        report(f"{image.platform} {image.descriptor.digest}")
        _check_blobs(source, image, seen, result, report)
        statements = source.referrers(image.descriptor.digest)
        documents = _documents(source, statements, image, result)
        sboms, provenances = documents[MEDIA_TYPE_SPDX], documents[MEDIA_TYPE_INTOTO]
        for sbom, provenance in zip_longest(sboms, provenances):
            compare = partial(check_statements, image.descriptor.digest, sbom, provenance)
            result.problems += _problems_of(image, compare)
        if expected.base:
            result.problems += check_base(image, expected)
            result.checks.append(f"{image.platform}: base")
        if expected.locks is not None:
            for sbom in sboms or [None]:
                compare = partial(check_locks, sbom, expected.locks, image.platform)
                result.problems += _problems_of(image, compare)
            result.checks.append(f"{image.platform}: dependencies against {expected.locks}")
    return result


def _problems_of(image: PlatformManifest, compare: Callable[[], list[str]]) -> list[str]:
    """Return what a comparison of the documents finds, or that they cannot be read."""
    try:
        return compare()
    except MALFORMED as error:
        return [f"{image.platform}: what is stated about it cannot be read: {error!r:.200}"]


def _check_blobs(
    source: ImageSource,
    image: PlatformManifest,
    seen: set[str],
    result: Verification,
    report: Callable[[str], None],
) -> None:
    """Compare each layer's bytes with its digest and size, its content with the config."""
    layers = image.layers
    diff_ids = list((image.config.get("rootfs") or {}).get("diff_ids") or ())
    if len(diff_ids) != len(layers):
        result.problems.append(
            f"the config lists {len(diff_ids)} layers, the manifest {len(layers)}"
        )
        diff_ids = [""] * len(layers)
    for layer, diff_id in zip(layers, diff_ids, strict=True):
        if layer.digest in seen:
            continue
        seen.add(layer.digest)
        problem = _check_layer(source, layer, diff_id)
        result.checked_blobs += 1
        result.checked_bytes += layer.size_bytes
        if problem:
            result.problems.append(problem)
        state = problem or "every byte agrees"
        report(f"  {layer.digest[:19]} {layer.size_bytes / 1e6:.1f} MB: {state}")


def _check_layer(source: ImageSource, layer: Descriptor, diff_id: str) -> str:
    stored, unpacked, size_bytes = hashlib.sha256(), hashlib.sha256(), 0
    unpack = _inflater(layer.media_type)
    try:
        for chunk in source.stream(layer):
            stored.update(chunk)
            size_bytes += len(chunk)
            unpacked.update(unpack(chunk))
    except (LayoutError, RegistryError, DigestMismatchError) as error:
        return f"layer {layer.digest}: {error.message}"
    except (zlib.error, zstandard.ZstdError) as error:
        return f"layer {layer.digest} cannot be unpacked: {error}"
    if size_bytes != layer.size_bytes:
        return f"layer {layer.digest} has {size_bytes} bytes, the manifest says {layer.size_bytes}"
    if f"sha256:{stored.hexdigest()}" != layer.digest:
        return f"layer {layer.digest} has other bytes: sha256:{stored.hexdigest()}"
    if diff_id and f"sha256:{unpacked.hexdigest()}" != diff_id:
        return f"layer {layer.digest} unpacks to sha256:{unpacked.hexdigest()}, not {diff_id}"
    return ""


def _inflater(media_type: str) -> Callable[[bytes], bytes]:
    if media_type.endswith("+zstd"):
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress
    return _inflate_gzip() if media_type.endswith("+gzip") else lambda chunk: chunk


def _inflate_gzip() -> Callable[[bytes], bytes]:
    """Return what inflates one gzip member after the other."""
    inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def inflate(chunk: bytes) -> bytes:
        nonlocal inflater
        data = b""
        while chunk:
            data += inflater.decompress(chunk)
            chunk = inflater.unused_data
            if inflater.eof:
                inflater = zlib.decompressobj(16 + zlib.MAX_WBITS)
        return data

    return inflate


def _documents(
    source: ImageSource, statements: list[Descriptor], image: PlatformManifest, result: Verification
) -> dict[str, list[Mapping[str, Any] | None]]:
    """Read the documents about an image; each must name it as its subject.

    Only those that zse wrote are returned: what others state follows rules of their own.
    """
    found: dict[str, list[Mapping[str, Any] | None]] = {MEDIA_TYPE_SPDX: [], MEDIA_TYPE_INTOTO: []}
    for item in statements:
        try:
            subject = subject_of(source.document(item))
            document = read_statement(source, [item], item.artifact_type)
            is_of_zse = document is not None and is_ours(document)
        except (LayoutError, RegistryError, DigestMismatchError) as error:
            result.problems.append(f"{item.artifact_type} {item.digest}: {error.message}")
            continue
        except MALFORMED as error:
            result.problems.append(f"{item.artifact_type} {item.digest}: {error!r:.200}")
            continue
        if subject != image.descriptor.digest:
            result.problems.append(f"{item.digest} is listed for this image but is about another")
        elif is_of_zse:
            found.setdefault(item.artifact_type, []).append(document)
            result.checks.append(f"{image.platform}: {item.artifact_type}")
    return found
