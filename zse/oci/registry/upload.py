"""Uploads to a registry: blobs first, a few at a time, the manifest last.

A blob that the repository has is not sent; one that another repository of the same registry has is
mounted. Small blobs go in one request, large ones in chunks that stay below the limits of common
proxies: after a cut the registry is asked how much it has, and the rest is sent. Some registries
drop the session when a chunk breaks off; the blob is then begun again.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from zse.oci.errors import RegistryAuthError, RegistryError
from zse.records import record
from zse.store.http.retry import doubled_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Protocol

    from zse.oci.layout.manifest import Descriptor
    from zse.oci.registry.client import Registry

    class Windows(Protocol):
        """Bytes that are made of something on this machine."""

        def window(self, offset_bytes: int, length_bytes: int, /) -> Callable[[], Iterator[bytes]]:
            """Return what yields a part of them, anew each time."""

    Source = Callable[[], Path | Windows]
    """Gives the local file of a blob, or its bytes, fetching it first where it must be fetched."""
    Progress = Callable[[int], None]
    """Told how many bytes of a blob have arrived."""

WHOLE_MAX_BYTES = 256 << 20
CHUNK_BYTES = 96 << 20
_CONNECTIONS = 3
_SESSIONS = 4
_RESUMES = 4
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
    """Upload blobs that the repository lacks; ``mount_from``: digest -> another that has it."""

    def push(item: tuple[Descriptor, Source]) -> None:
        descriptor, source = item

        def progress(done_bytes: int) -> None:
            share = f"{done_bytes / 1e6:.0f} of {descriptor.size_bytes / 1e6:.0f} MB"
            report(f"sending {descriptor.digest[:19]}: {share}")

        mount = mount_from.get(descriptor.digest, "")
        how = push_blob(registry, descriptor, source, mount, progress=progress)
        report(f"{how} {descriptor.digest[:19]} ({descriptor.size_bytes / 1e6:.1f} MB)")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(push, blobs))


def push_blob(
    registry: Registry,
    descriptor: Descriptor,
    source: Source,
    mount_from: str = "",
    *,
    progress: Progress = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Upload:
    """Upload one blob, going on after a cut, or anew when the registry has lost the session.

    Raises:
        RegistryError: It could not be uploaded.
    """
    if registry.has_blob(descriptor.digest):
        return Upload.EXISTED
    upload = _BlobUpload(registry=registry, descriptor=descriptor, progress=progress, sleep=sleep)
    for attempt in range(1, _SESSIONS):
        try:
            return upload.run(source, mount_from)
        except RegistryAuthError:
            raise
        except RegistryError:
            sleep(doubled_seconds(attempt, first_seconds=1.0))
    return upload.run(source, mount_from)


@record
class _BlobUpload:
    """One blob on its way to one repository."""

    registry: Registry
    descriptor: Descriptor
    progress: Progress
    sleep: Callable[[float], None]

    def run(self, source: Source, mount_from: str) -> Upload:
        """Have the blob mounted, or send it in one session."""
        digest = self.descriptor.digest
        query = f"?mount={digest}&from={mount_from}" if mount_from else ""
        start = self.registry.push("POST", f"blobs/uploads/{query}", body=b"", accept=(201, 202))
        if start.status == 201:
            return Upload.MOUNTED
        path, location, rest_bytes = source(), start.location, self.descriptor.size_bytes
        if rest_bytes > WHOLE_MAX_BYTES:
            location = self._send_chunks(path, location, _chunk_bytes(start.headers))
            rest_bytes = 0
        self.registry.push(
            "PUT",
            f"{location}{'&' if '?' in location else '?'}digest={digest}",
            body=file_window(path, self.descriptor.size_bytes - rest_bytes, rest_bytes),
            headers={**_OCTETS, "Content-Length": str(rest_bytes)},
            accept=(201,),
            retries=1,
        )
        return Upload.SENT

    def _send_chunks(self, path: Path | Windows, location: str, chunk_bytes: int) -> str:
        """Send the blob in chunks; after a cut, go on from where the registry says it is.

        Returns:
            Where the upload is to be completed.
        """
        size_bytes = self.descriptor.size_bytes
        done_bytes, failures = 0, 0
        while done_bytes < size_bytes:
            end_bytes = min(done_bytes + chunk_bytes, size_bytes)
            try:
                location = self._send_chunk(path, location, done_bytes, end_bytes)
            except RegistryAuthError:
                raise
            except RegistryError:
                failures += 1
                if failures > _RESUMES:
                    raise
                self.sleep(doubled_seconds(failures, first_seconds=1.0))
                location, done_bytes = self._state(location)
                continue
            done_bytes, failures = end_bytes, 0
            self.progress(done_bytes)
        return location

    def _send_chunk(
        self, path: Path | Windows, location: str, start_bytes: int, end_bytes: int
    ) -> str:
        answer = self.registry.push(
            "PATCH",
            location,
            body=file_window(path, start_bytes, end_bytes - start_bytes),
            headers={
                **_OCTETS,
                "Content-Length": str(end_bytes - start_bytes),
                "Content-Range": f"{start_bytes}-{end_bytes - 1}",
            },
            accept=(202,),
            retries=0,  # nobody knows how much of it arrived
        )
        return answer.location

    def _state(self, location: str) -> tuple[str, int]:
        """Ask how much of the upload the registry has; where it has lost it, this is an error."""
        answer = self.registry.push("GET", location, accept=(204,))
        first, _, last = answer.headers.get("range", "").rpartition("=")[2].partition("-")
        done_bytes = int(last) + 1 if first == "0" and last.isdecimal() else 0
        # "0-0" means one byte or none: the registry cannot say, so it is taken for none.
        if done_bytes == 1:
            done_bytes = 0
        return answer.location if "location" in answer.headers else location, done_bytes


def _chunk_bytes(headers: Mapping[str, str]) -> int:
    smallest, largest = (
        int(text) if text.isdecimal() else 0
        for text in (headers.get(f"oci-chunk-{end}-length", "") for end in ("min", "max"))
    )
    wanted = max(CHUNK_BYTES, smallest)
    return min(wanted, largest) if largest else wanted


def file_window(
    path: Path | Windows, offset_bytes: int, length_bytes: int
) -> Callable[[], Iterator[bytes]]:
    """Return a body that reads a part of a file, or of what has such parts, anew each time."""
    if not isinstance(path, Path):
        return path.window(offset_bytes, length_bytes)

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
