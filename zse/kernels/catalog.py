"""Every variant that goes into a kernel pack, gathered from the folders of the operations.

Nothing here imports torch or triton.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.kernels.variant import Variant

FOLDERS = ("linear", "norm", "gate_up", "embed", "rope_store", "attention", "lm_head_sample")
SOURCE_PATTERNS = ("variant.py", "*/variants.py", "*/triton_*.py")
"""Files that decide what a pack holds: a digest over them tells a stale pack."""


@cache
def all_variants() -> tuple[Variant, ...]:
    """Return the variants of every operation, each once, in a fixed order."""
    found: dict[str, Variant] = {}
    for folder in FOLDERS:
        name = f"zse.kernels.{folder}"
        if find_spec(name) is None or find_spec(f"{name}.variants") is None:
            continue
        for variant in import_module(f"{name}.variants").VARIANTS:
            found[variant.key] = variant
    return tuple(found.values())


@cache
def source_digest() -> str:
    """Return the SHA-256 of the kernels' sources; empty where only compiled Python is installed."""
    root = Path(__file__).parent
    paths = sorted(path for pattern in SOURCE_PATTERNS for path in root.glob(pattern))
    if not any(path.name.startswith("triton_") for path in paths):
        return ""
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
