"""Files that only their user may read, written whole: keys, and what people wrote."""

from __future__ import annotations

import os

from zse.store.local import LocalWriter


class PrivateWriter(LocalWriter):
    """Writes a file that nobody else may read, from its first byte on."""

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self._temporary, flags, 0o600)
