"""One object into one writer, with length and digest checked before it is published."""

from __future__ import annotations

import hashlib

from zse.errors import StoreError
from zse.store.base import Progress, Store, Transfer, Writer


def copy_object(source: Store, writer: Writer, progress: Progress | None = None) -> Transfer:
    """Copy ``source`` into ``writer``; nothing is published unless every check holds.

    Raises:
        NotFoundError: The source does not exist.
        StoreError: The bytes that came are not the bytes that were announced.
    """
    total_bytes = source.size()
    expected = source.recorded_sha256()
    digest = hashlib.sha256()
    done_bytes = 0
    with writer:
        for chunk in source.read_chunks():
            digest.update(chunk)
            done_bytes += writer.write(chunk)
            if progress is not None:
                progress(done_bytes, total_bytes)
        found = digest.hexdigest()
        if done_bytes != total_bytes or (expected is not None and found != expected):
            raise StoreError(
                f"{source.location} does not hold what was stored: {done_bytes} bytes, "
                f"sha256 {found}; expected {total_bytes} bytes, "
                f"sha256 {expected or 'not recorded'}",
                hint="The object was damaged or changed while it was read: copy it again.",
            )
    return Transfer(size_bytes=done_bytes, sha256=found, verified=expected is not None)
