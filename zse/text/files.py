"""Texts out of files that anybody may have written: bounded, and in UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """Return what a file says.

    Raises:
        UsageError: It is absent, no text in UTF-8, empty, or longer than 64 MiB.
    """
    try:
        if not path.is_file() and path.exists():
            raise UsageError(f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} has more than the {MOST_BYTES:,} bytes that are read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: byte {error.start} does not fit") from error
    if "\0" in text:
        raise UsageError(f"{path} is no text: byte {data.index(0)} is zero")
    if not text.strip():
        raise UsageError(f"{path} is empty")
    return text
