"""Brings a finished image into a repository as it is: the same bytes, so the same digests.

What refers to it comes along, bills of materials and provenance among it, which tools that copy
images leave behind. Documents that come from outside are read with care: each has the digest that
was asked for, and what it names is pushed before it.
"""

from __future__ import annotations

import json
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from zse.oci.errors import LayoutError
from zse.oci.image.publish import push_referrer
from zse.oci.layout.manifest import (
    MALFORMED,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    digest_of,
)
from zse.oci.registry.upload import push_blobs
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zse.oci.image.source import ImageSource
    from zse.oci.registry.client import Registry

_DEEPEST = 4
"""Indexes in indexes; images of every kind that is known have one."""


@record
class _Document:
    """A manifest or an index, and the blobs that it names."""

    descriptor: Descriptor
    content: bytes
    blobs: tuple[Descriptor, ...]
    statements: tuple[_Document, ...]
    """What refers to it."""


def copy_image(
    source: ImageSource, registry: Registry, scratch: Path, report: Callable[[str], None]
) -> str:
    """Push an image and what is stated about it; the tag, or digest, the registry has comes last.

    Args:
        source: The image.
        registry: Opened with the name that the image gets.
        scratch: A folder for blobs that are in no file of their own.
        report: Told what happens.

    Returns:
        The digest, which is that of the source.

    Raises:
        ImageError: Any of its subclasses: the image cannot be read, or the registry refuses.
    """
    *inner, top = _documents(source, source.top())
    everything = [*inner, top, *(one for it in (*inner, top) for one in it.statements)]
    blobs = {blob.digest: blob for it in everything for blob in it.blobs}
    host, repository = source.repository
    mounts = dict.fromkeys(blobs, repository) if host == registry.reference.host else {}
    fetch = partial(_fetch, source, scratch, Lock())
    items = [(blob, partial(fetch, blob)) for blob in blobs.values()]
    push_blobs(registry, items, mount_from=mounts, report=report)
    for it in inner:
        registry.push_manifest(it.descriptor.digest, it.content, it.descriptor.media_type)
    for it in (*inner, top):
        for one in it.statements:
            push_referrer(registry, one.content, one.descriptor, it.descriptor.digest)
    registry.push_manifest(registry.reference.identifier, top.content, top.descriptor.media_type)
    return top.descriptor.digest


def _fetch(source: ImageSource, scratch: Path, lock: Lock, blob: Descriptor) -> Path:
    """Return a blob as a file: one after the other, since a tar file is read at one place."""
    with lock:
        return source.fetch(blob, scratch)


def _documents(source: ImageSource, content: bytes, depth: int = 0) -> Iterator[_Document]:
    """Yield an image's manifests and indexes from the inside out."""
    if depth > _DEEPEST:
        raise LayoutError(f"{source.name} has indexes in indexes, more than {_DEEPEST} deep")
    digest = digest_of(content)
    document = _parsed(content, digest)
    for item in _named(document, "manifests", digest):
        yield from _documents(source, source.document(item), depth + 1)
    usual = MEDIA_TYPE_INDEX if "manifests" in document else MEDIA_TYPE_MANIFEST
    yield _Document(
        descriptor=Descriptor(
            media_type=str(document.get("mediaType") or usual),
            digest=digest,
            size_bytes=len(content),
        ),
        content=content,
        blobs=_blobs(document, digest),
        statements=tuple(_statement(source, item) for item in source.referrers(digest)),
    )


def _statement(source: ImageSource, item: Descriptor) -> _Document:
    content = source.document(item)
    blobs = _blobs(_parsed(content, item.digest), item.digest)
    return _Document(descriptor=item, content=content, blobs=blobs, statements=())


def _blobs(document: dict[str, Any], digest: str) -> tuple[Descriptor, ...]:
    config = {"config": [document["config"]]} if "config" in document else {}
    named = _named(document, "layers", digest)
    return (*_named(config, "config", digest), *named)


def _parsed(content: bytes, digest: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except MALFORMED as error:
        raise LayoutError(f"{digest} is no manifest: {error}") from error
    if not isinstance(document, dict):
        raise LayoutError(f"{digest} is no manifest: an object is expected")
    return document


def _named(document: dict[str, Any], field: str, digest: str) -> list[Descriptor]:
    try:
        return [Descriptor.from_json(item) for item in document.get(field) or ()]
    except MALFORMED as error:
        raise LayoutError(f"'{field}' of {digest} lists no blobs: {error!r}") from error
