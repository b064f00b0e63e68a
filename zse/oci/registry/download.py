"""Downloads of blobs that outlive cut connections: what has arrived is not asked for again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx

from zse.oci.errors import DigestMismatchError, RegistryError
from zse.oci.registry.connection import Call
from zse.store.http.retry import doubled_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.oci.layout.manifest import Descriptor
    from zse.oci.registry.client import Registry

_TRIES = 5
_CHUNK_BYTES = 1 << 20


def stream_blob(
    registry: Registry, descriptor: Descriptor, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """Yield the bytes of a blob; the caller compares their digest.

    Raises:
        RegistryError: The registry refused, or kept cutting the connection.
        DigestMismatchError: There are more bytes than the descriptor says.
    """
    done_bytes = 0
    for attempt in range(1, _TRIES + 1):
        problem: Exception | None = None
        try:
            for chunk in _from_offset(registry, descriptor, done_bytes):
                done_bytes += len(chunk)
                if done_bytes > descriptor.size_bytes:
                    raise DigestMismatchError(
                        f"blob {descriptor.digest} has more than {descriptor.size_bytes} bytes"
                    )
                yield chunk
        except httpx.HTTPError as error:
            problem = error
        if done_bytes == descriptor.size_bytes and problem is None:
            return
        if attempt == _TRIES:
            raise RegistryError(
                f"the download of {descriptor.digest} broke off after {done_bytes} bytes of "
                f"{descriptor.size_bytes}: {problem or 'the answer was too short'}"
            ) from problem
        sleep(doubled_seconds(attempt, first_seconds=0.5))


def _from_offset(registry: Registry, descriptor: Descriptor, offset_bytes: int) -> Iterator[bytes]:
    headers = {"Accept-Encoding": "identity"}
    if offset_bytes:
        headers["Range"] = f"bytes={offset_bytes}-"
    call = Call(location=f"blobs/{descriptor.digest}", headers=headers, accept=(200, 206))
    with registry.stream(call) as answer:
        # A registry without ranges sends all of it again: what is there already is passed over.
        skipped_bytes = offset_bytes if answer.status_code == 200 else 0
        for chunk in answer.iter_bytes(_CHUNK_BYTES):
            rest = chunk[skipped_bytes:] if skipped_bytes else chunk
            skipped_bytes = max(0, skipped_bytes - len(chunk))
            if rest:
                yield rest
