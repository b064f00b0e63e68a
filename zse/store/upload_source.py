"""The local file of an upload: read at offsets by several threads, and watched for changes."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Self

from zse.errors import StoreError
from zse.store.base import CHUNK_BYTES
from zse.store.local import translated_os_error

if TYPE_CHECKING:
    from pathlib import Path


class UploadSource:
    """An open file. Use it as a context manager.

    Raises:
        NotFoundError: The file does not exist.
        StoreError: It cannot be read, or is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file_descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise translated_os_error(error, path, "read") from error
        status = os.fstat(self._file_descriptor)
        self._signature = status.st_size, status.st_mtime_ns
        self.size_bytes = status.st_size
        if not stat.S_ISREG(status.st_mode):
            os.close(self._file_descriptor)
            raise StoreError(f"{path} is not a file", hint="Upload files one by one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file_descriptor)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for offset in range(0, self.size_bytes, CHUNK_BYTES):
            digest.update(self.read(offset, min(CHUNK_BYTES, self.size_bytes - offset)))
        return digest.hexdigest()

    def require_unchanged(self) -> None:
        """Raise a StoreError when the file changed since it was opened."""
        status = os.fstat(self._file_descriptor)
        if (status.st_size, status.st_mtime_ns) != self._signature:
            raise StoreError(
                f"{self._path} changed while it was uploaded",
                hint="Upload it again when nothing writes to it.",
            )

    def read(self, offset: int, length: int) -> bytearray:
        buffer, filled = bytearray(length), 0
        view = memoryview(buffer)
        while filled < length:
            try:
                count = os.preadv(self._file_descriptor, [view[filled:]], offset + filled)
            except OSError as error:
                raise translated_os_error(error, self._path, "read") from error
            if count == 0:
                raise StoreError(
                    "the file became shorter while it was uploaded",
                    hint="Upload it again when nothing writes to it.",
                )
            filled += count
        return buffer
