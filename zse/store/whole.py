"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write a file under a temporary name; give it its own when its bytes are on the disk.

    Args:
        path: The file; its folder is made when it is not there.
        data: What it holds; text is written as UTF-8.

    Raises:
        OSError: It cannot be written; what was there before is there still.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
