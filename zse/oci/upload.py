"""Uploads to a registry: blobs first, a few at a time, the manifest last.

A blob that the repository has is not sent; one that another repository of the same registry has is
mounted. Small blobs go in one request, large ones in chunks that stay below the limits of common
proxies. Some registries drop the session when a chunk breaks off, so the blob is then begun again.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING

from zse.oci.errors import RegistryAuthError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zse.oci.image import Descriptor
    from zse.oci.registry import Registry

    Source = Callable[[], Path]
    """Gives the local file of a blob, fetching it first where it must be fetched."""

WHOLE_MAX_BYTES = 256 << 20
CHUNK_BYTES = 96 << 20
_CONNECTIONS = 3
_SESSIONS = 4
_OCTETS = {"Content-Type": "application/octet-stream"}


class Upload(StrEnum):
    """How a blob came to be in the repository."""

    EXISTED = "exists"
    MOUNTED = "mounted"
    SENT = "sent"


def push_blobs(
    registry: Registry,
    blobs: Sequence[tuple[Descriptor, Source]],
    *,
    mount_from: Mapping[str, str],
    report: Callable[[str], None],
) -> None:
    """Upload blobs that the repository lacks.

    Args:
        registry: The repository.
        blobs: What to upload, and where it lies.
        mount_from: digest -> repository of the same registry that already holds it.
        report: Told of each blob.
    """

    def push(item: tuple[Descriptor, Source]) -> None:
        descriptor, source = item
        how = push_blob(registry, descriptor, source, mount_from.get(descriptor.digest, ""))
        report(f"{how} {descriptor.digest[:19]} ({descriptor.size_bytes / 1e6:.1f} MB)")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(push, blobs))


def push_blob(
    registry: Registry,
    descriptor: Descriptor,
    source: Source,
    mount_from: str = "",
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Upload:
    """Upload one blob, beginning again when the registry loses the session.

    Raises:
        RegistryError: It could not be uploaded.
    """
    if registry.has_blob(descriptor.digest):
        return Upload.EXISTED
    for attempt in range(1, _SESSIONS):
        try:
            return _upload(registry, descriptor, source, mount_from)
        except RegistryAuthError:
            raise
        except RegistryError:
            sleep(0.5 * 2**attempt)
    return _upload(registry, descriptor, source, mount_from)


def _upload(registry: Registry, descriptor: Descriptor, source: Source, mount_from: str) -> Upload:
    query = f"?mount={descriptor.digest}&from={mount_from}" if mount_from else ""
    start = registry.request(
        "POST",
        f"/v2/{registry.reference.repository}/blobs/uploads/{query}",
        body=b"",
        accept=(201, 202),
        scope="pull,push",
    )
    if start.status_code == 201:
        return Upload.MOUNTED
    path = source()
    location, done_bytes = start.headers["location"], 0
    if descriptor.size_bytes > WHOLE_MAX_BYTES:
        chunk_bytes = _chunk_bytes(start.headers)
        while done_bytes < descriptor.size_bytes:
            length = min(chunk_bytes, descriptor.size_bytes - done_bytes)
            answer = registry.request(
                "PATCH",
                location,
                body=file_window(path, done_bytes, length),
                headers={
                    **_OCTETS,
                    "Content-Length": str(length),
                    "Content-Range": f"{done_bytes}-{done_bytes + length - 1}",
                },
                accept=(202,),
                scope="pull,push",
                tries=2,
            )
            location, done_bytes = answer.headers["location"], done_bytes + length
    rest_bytes = descriptor.size_bytes - done_bytes
    registry.request(
        "PUT",
        f"{location}{'&' if '?' in location else '?'}digest={descriptor.digest}",
        body=file_window(path, done_bytes, rest_bytes),
        headers={**_OCTETS, "Content-Length": str(rest_bytes)},
        accept=(201,),
        scope="pull,push",
        tries=2,
    )
    return Upload.SENT


def _chunk_bytes(headers: Mapping[str, str]) -> int:
    """Size of a chunk within the bounds that the registry states."""
    smallest = int(headers.get("oci-chunk-min-length") or 0)
    largest = int(headers.get("oci-chunk-max-length") or 0)
    wanted = max(CHUNK_BYTES, smallest)
    return min(wanted, largest) if largest else wanted


def file_window(path: Path, offset_bytes: int, length_bytes: int) -> Callable[[], Iterator[bytes]]:
    """Return a body that reads a part of a file anew each time it is sent."""

    def chunks() -> Iterator[bytes]:
        with path.open("rb", buffering=0) as stream:
            stream.seek(offset_bytes)
            left = length_bytes
            while left:
                data = stream.read(min(1 << 20, left))
                if not data:
                    raise RegistryError(f"{path} became shorter while it was uploaded")
                left -= len(data)
                yield data

    return chunks
