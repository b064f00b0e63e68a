"""What stores say about an object's bytes, and the arithmetic that proves it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Bytes = bytes | bytearray | memoryview

SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})(?:-(\d+))?"?')


@record
class Checksum:
    """A digest of a whole object.

    ``md5-parts`` is the ETag of a multipart upload (the MD5 of the parts' MD5s), ``git-blob`` what
    a hub tells of files that are not in its large-file storage.
    """

    algorithm: Literal["sha256", "md5", "md5-parts", "git-blob"]
    value: str
    part_bytes: int = 0
    """Length of each part but the last, for ``md5-parts``."""

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"


def etag_md5(etag: str, headers: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the MD5 of an ETag and its number of parts, 0 for one PUT; None for other ETags.

    It means nothing where the ``headers`` say that the server encrypts with keys of its own.
    """
    encrypted = "x-amz-server-side-encryption"
    if f"{encrypted}-customer-algorithm" in headers or "kms" in headers.get(encrypted, ""):
        return None
    match = _MD5_ETAG.fullmatch(etag)
    return None if match is None else (match[1], int(match[2] or 0))


class Hashing:
    """Digests of bytes that come in order: always SHA-256, and the one that the store knows."""

    def __init__(self, expected: Checksum | None, size_bytes: int) -> None:
        self.size_bytes = 0
        self._expected = expected
        self._sha256 = hashlib.sha256()
        self._update: Callable[[Bytes], None] | None = None
        if expected is None or expected.algorithm == "sha256":
            self._found = self._sha256.hexdigest
        elif expected.algorithm == "md5-parts":
            parts = _PartsMd5(expected.part_bytes)
            self._update, self._found = parts.update, parts.hexdigest
        else:
            is_git = expected.algorithm == "git-blob"
            other = hashlib.new("sha1" if is_git else "md5", usedforsecurity=False)
            if is_git:
                other.update(b"blob %d\0" % size_bytes)
            self._update, self._found = other.update, other.hexdigest

    def update(self, chunk: Bytes) -> None:
        self.size_bytes += len(chunk)
        self._sha256.update(chunk)
        if self._update is not None:
            self._update(chunk)

    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def found(self) -> Checksum:
        """Return the digest of what came, in the store's algorithm."""
        if self._expected is None:
            return Checksum(algorithm="sha256", value=self._found())
        return replace(self._expected, value=self._found())

    def is_as_expected(self) -> bool:
        """Whether the store knows no digest, or this one."""
        return self._expected is None or self.found() == self._expected


class _PartsMd5:
    """The ETag of an upload in parts."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._digests: list[bytes] = []
        self._part, self._part_done = hashlib.md5(usedforsecurity=False), 0

    def update(self, chunk: Bytes) -> None:
        view = memoryview(chunk)
        while len(view):
            taken = view[: self._part_bytes - self._part_done]
            self._part.update(taken)
            self._part_done += len(taken)
            view = view[len(taken) :]
            if self._part_done == self._part_bytes:
                self._close_part()

    def hexdigest(self) -> str:
        """Return the ETag, without quotes. Nothing may follow."""
        if self._part_done:
            self._close_part()
        whole = hashlib.md5(b"".join(self._digests), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(self._digests)}"

    def _close_part(self) -> None:
        self._digests.append(self._part.digest())
        self._part, self._part_done = hashlib.md5(usedforsecurity=False), 0
