"""Text of strangers on a terminal of yours: what could command it is shown, never sent."""

from __future__ import annotations


def printable(text: str, *, keep: str = "", instead: str = "") -> str:
    """Return a text without control characters and others that are not seen as they are.

    Args:
        text: From a file, a label, a registry or a client.
        keep: Such characters that may stay: a line break where a text has lines.
        instead: What stands for each of the others; empty shows its number, as JSON does.
    """
    return "".join(
        char if char.isprintable() or char in keep else instead or f"\\u{ord(char):04x}"
        for char in text
    )
