"""One object into one writer, with length and digest checked before it is published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.errors import StoreError
from zse.store.base import Progress, Store, Transfer
from zse.store.checksum import Checksum, Hashing

if TYPE_CHECKING:
    from zse.store.local import LocalWriter


def copy_object(
    source: Store,
    writer: LocalWriter,
    progress: Progress | None = None,
    *,
    sha256: str | None = None,
) -> Transfer:
    """Copy ``source`` into ``writer``, from where an earlier copy stopped if the writer knows.

    Nothing is published unless every check holds, and damaged bytes are not kept.

    Args:
        sha256: The digest that the caller knows; otherwise the one that the store knows.

    Raises:
        NotFoundError: The source does not exist.
        StoreError: The bytes that came are not the bytes that were announced.
    """
    known = None if sha256 is None else Checksum(algorithm="sha256", value=sha256)
    total_bytes, expected = source.size(), known or source.checksum()
    hashing = Hashing(expected, total_bytes)
    with writer:
        for held in writer.read_back(total_bytes):
            hashing.update(held)
        resumed_bytes = hashing.size_bytes
        # Hashing lets other threads run: a chunk is hashed while it is written.
        with ThreadPoolExecutor(1, thread_name_prefix="zse-hash") as pool:
            for chunk in source.read_chunks(resumed_bytes):
                hashed = pool.submit(hashing.update, chunk)
                try:
                    writer.write(chunk)
                finally:
                    hashed.result()
                if progress is not None:
                    progress(hashing.size_bytes, total_bytes)
        if hashing.size_bytes != total_bytes or not hashing.is_as_expected():
            writer.discard()
            raise StoreError(
                f"{source.location} does not hold what was stored: {hashing.size_bytes} bytes, "
                f"{hashing.found()}; expected {total_bytes} bytes, "
                f"{expected or 'no recorded digest'}",
                hint="The object was damaged or changed while it was read: copy it again.",
            )
    return Transfer(
        size_bytes=total_bytes,
        sha256=hashing.sha256(),
        verified=expected is not None,
        resumed_bytes=resumed_bytes,
    )


def read_digests(
    source: Store, expected: Checksum | None = None, progress: Progress | None = None
) -> Hashing:
    """Read a whole object for its digests.

    Args:
        expected: What the caller will compare with.

    Raises:
        NotFoundError: The source does not exist.
        StoreError: The storage failed.
    """
    total_bytes = source.size()
    hashing = Hashing(expected, total_bytes)
    for chunk in source.read_chunks():
        hashing.update(chunk)
        if progress is not None:
            progress(hashing.size_bytes, total_bytes)
    return hashing
