"""One object into one writer, with length and digest checked before it is published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.errors import StoreError
from zse.store.base import Progress, Store, Transfer, Writer
from zse.store.checksum import Checksum, Hashing

if TYPE_CHECKING:
    from zse.store.partial import PartialWriter


class DamagedError(StoreError):
    """The bytes that came are not those that the store announced."""


def copy_object(
    source: Store, writer: Writer, progress: Progress | None = None, *, sha256: str | None = None
) -> Transfer:
    """Copy ``source`` into ``writer``; nothing is published unless every check holds.

    Args:
        source: What to copy.
        writer: Where to.
        progress: Called after each chunk.
        sha256: The digest that the caller knows; otherwise the one that the store knows.

    Raises:
        NotFoundError: The source does not exist.
        StoreError: The bytes that came are not the bytes that were announced.
    """
    total_bytes, expected = source.size(), _expected(source, sha256)
    hashing = Hashing(expected, total_bytes)
    with writer:
        _copy(source, writer, hashing, total_bytes, progress)
        _check(source, hashing, total_bytes, expected)
    return Transfer(size_bytes=total_bytes, sha256=hashing.sha256(), verified=expected is not None)


def resume_copy(
    source: Store,
    writer: PartialWriter,
    progress: Progress | None = None,
    *,
    sha256: str | None = None,
) -> Transfer:
    """As ``copy_object``, from where an earlier copy of the same object stopped.

    Raises:
        NotFoundError: The source does not exist.
        StoreError: The bytes that came are not the bytes that were announced; nothing is kept.
    """
    total_bytes, expected = source.size(), _expected(source, sha256)
    hashing = Hashing(expected, total_bytes)
    with writer:
        for chunk in writer.read_back(total_bytes):
            hashing.update(chunk)
        resumed_bytes = hashing.size_bytes
        _copy(source, writer, hashing, total_bytes, progress)
        try:
            _check(source, hashing, total_bytes, expected)
        except DamagedError:
            writer.discard()
            raise
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
        source: What to read.
        expected: What the caller will compare with.
        progress: Called after each chunk.

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


def _copy(
    source: Store, writer: Writer, hashing: Hashing, total_bytes: int, progress: Progress | None
) -> None:
    """Write and hash what follows the bytes that were hashed already."""
    # Hashing lets other threads run: a chunk is hashed while it is written.
    with ThreadPoolExecutor(1, thread_name_prefix="zse-hash") as pool:
        for chunk in source.read_chunks(hashing.size_bytes):
            hashed = pool.submit(hashing.update, chunk)
            try:
                writer.write(chunk)
            finally:
                hashed.result()
            if progress is not None:
                progress(hashing.size_bytes, total_bytes)


def _expected(source: Store, sha256: str | None) -> Checksum | None:
    if sha256 is not None:
        return Checksum(algorithm="sha256", value=sha256)
    return source.checksum()


def _check(source: Store, hashing: Hashing, total_bytes: int, expected: Checksum | None) -> None:
    if hashing.size_bytes == total_bytes and hashing.is_as_expected():
        return
    raise DamagedError(
        f"{source.location} does not hold what was stored: {hashing.size_bytes} bytes, "
        f"{hashing.found()}; expected {total_bytes} bytes, {expected or 'no recorded digest'}",
        hint="The object was damaged or changed while it was read: copy it again.",
    )
