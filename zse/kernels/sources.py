"""A digest over the kernels' sources: it tells a stale kernel pack."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

SOURCE_PATTERNS = (
    "format/nf4.py",
    "kernels/layout.py",
    "kernels/variant.py",
    "kernels/*/arrays.py",
    "kernels/*/definitions.py",
    "kernels/*/nf4.py",
    "kernels/**/triton/*.py",
    "kernels/*/variants.py",
    "kernels/*/weight.py",
)
"""Files of ``zse`` that decide what a pack holds: kernels, variants and what these import."""


@cache
def source_digest() -> str:
    """Return the SHA-256 of the kernels' sources; empty where only compiled Python is installed."""
    root = Path(__file__).parent.parent
    paths = sorted(path for pattern in SOURCE_PATTERNS for path in root.glob(pattern))
    if not any(path.parent.name == "triton" for path in paths):
        return ""
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
