"""Which names and digests a file may hold. Names may become file names, so the rules are narrow."""

from __future__ import annotations

import re

from zse.format.errors import Rule

MAX_NAME_BYTES = 255
SPARE_PREFIX, MEDUSA_PREFIX = "mtp.", "medusa."
SPARE_PREFIXES = (SPARE_PREFIX, MEDUSA_PREFIX)
"""How the names of groups begin that steps do without."""

_TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")
_SECTION_PIECE = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def check_tensor_name(name: str) -> None:
    """Raise unless ``name`` is letters, digits, ``.``, ``_`` and ``-``."""
    if len(name) > MAX_NAME_BYTES or not _TENSOR_NAME.match(name):
        raise Rule.UNSAFE_TENSOR_NAME(
            f"the name {name[:80]!r} is not letters, digits, '.', '_' and '-'"
        )


def check_section_name(name: str) -> None:
    """Raise unless ``name`` is a plain relative path without ``.`` or ``..``."""
    pieces = name.split("/")
    safe = all(_SECTION_PIECE.match(piece) and piece not in (".", "..") for piece in pieces)
    if len(name) > MAX_NAME_BYTES or not safe:
        raise Rule.UNSAFE_SECTION_NAME(
            f"the section name {name[:80]!r} is not a plain relative path",
            hint="The file may be hostile: do not unpack it.",
        )


def check_digest(digest: str, where: str) -> str:
    """Return ``digest``, or raise unless it is 64 lowercase hexadecimal digits."""
    if not _DIGEST.match(digest):
        raise Rule.BAD_DIGEST(f"{where}: {digest[:80]!r} is not 64 lowercase hexadecimal digits")
    return digest
