"""From the bytes of a document to its blocks: here where that is simple, else in a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

import msgspec

from zse.errors import MissingDependencyError, OverloadedError, RefusedError
from zse.serve.documents.blocks import Block
from zse.serve.documents.child import OUTPUT_BYTES
from zse.serve.documents.parsing import PARSED_APART, Kind, parse

TIMEOUT_SECONDS = 60.0
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from zse.serve.documents.child import main; main()"
)


class _Said(msgspec.Struct):
    """What the child wrote; it read bytes of unknown origin, so it is checked like them."""

    blocks: list[tuple[str, int | None, str]] = []
    error: str = ""
    hint: str = ""
    is_missing: bool = False


def read_document(
    kind: Kind, data: bytes, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> list[Block]:
    """Return the blocks of a document; called off the event loop.

    Raises:
        RefusedError: It cannot be read, or not within bounds.
        MissingDependencyError: What reads this kind is not installed.
        OverloadedError: No process can be started.
    """
    if kind not in PARSED_APART:
        return parse(kind, data)
    said = _said_by_child(kind, data, timeout_seconds)
    if said.is_missing:
        raise MissingDependencyError(said.error, hint=said.hint)
    if said.error:
        raise RefusedError(said.error, hint=said.hint)
    return [Block(text=text, page=page, heading=heading) for text, page, heading in said.blocks]


def _said_by_child(kind: Kind, data: bytes, timeout_seconds: float) -> _Said:
    command = [sys.executable, "-I", "-B", "-X", "utf8", "-c", _CODE, json.dumps(_paths()), kind]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        given.write(data)
        given.seek(0)
        try:
            code = subprocess.run(
                command,
                stdin=given,
                stdout=told,
                stderr=subprocess.DEVNULL,
                timeout=timeout_seconds,
                check=False,
                env={},
                cwd="/",
            ).returncode
        except subprocess.TimeoutExpired:
            raise RefusedError(
                f"this document was not read within {timeout_seconds:g} seconds"
            ) from None
        except OSError as error:
            raise OverloadedError(f"no process can read this document: {error}") from error
        told.seek(0)
        text = told.read(OUTPUT_BYTES + 1)
    try:
        return msgspec.json.decode(text, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RefusedError(
            f"this document cannot be read: its reader was ended ({code})",
            hint="It takes too much memory or time, or it is damaged.",
        ) from None


def _paths() -> list[str]:
    return [os.path.abspath(place) for place in sys.path if place]  # noqa: PTH100 - zip files too
