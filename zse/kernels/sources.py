"""A digest over the kernels' sources: it tells a stale kernel pack."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE_PATTERNS = (
    "format/few_bits.py",
    "format/mxfp4.py",
    "format/nf4.py",
    "format/nl4.py",
    "kernels/layout.py",
    "kernels/variant.py",
    "kernels/*/arrays.py",
    "kernels/*/*_forms.py",
    "kernels/*/definitions.py",
    "kernels/*/rules.py",
    "kernels/*/tables.py",
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
    return digest_of((path.relative_to(root).as_posix(), path.read_bytes()) for path in paths)


def digest_of(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 of files, each a name and what it holds."""
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
