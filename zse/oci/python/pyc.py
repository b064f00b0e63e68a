"""Byte code for the image, made by the Python of the image without running the image.

Layers have one fixed time stamp, so ordinary .pyc files would all look stale and cost more than
none. Unchecked-hash files are never compared with their source: importing them takes half the time.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zse.errors import ImageError
from zse.oci.layout.tar import Entry, Kind, file_of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class PycCompiler:
    """A clean child interpreter, started by ``python``, that compiles source after source."""

    def __init__(self, python: Sequence[str]) -> None:
        worker = Path(__file__).with_name("pyc_worker.py")
        self._command = [*python, "-I", "-S", "-W", "ignore", str(worker)]

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__(None, None, None)

    def compile(self, source: bytes, path: str) -> bytes:
        """Compile ``source``; ``path`` is its absolute path inside the image.

        Returns:
            The .pyc file, or nothing when the source is not valid Python (a template, say).

        Raises:
            ImageError: The child interpreter died.
        """
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise ImageError("the compiler has no pipes")
        name = path.encode()
        try:
            stdin.write(struct.pack("<I", len(name)) + name)
            stdin.write(struct.pack("<I", len(source)) + source)
            stdin.flush()
        except BrokenPipeError as error:
            raise ImageError(f"the byte code compiler died at {path}") from error
        head = stdout.read(4)
        length = struct.unpack("<I", head)[0] if len(head) == 4 else 0
        code = stdout.read(length)
        if len(head) < 4 or len(code) < length:
            raise ImageError(f"the byte code compiler died at {path}")
        return code


def with_byte_code(
    entries: Iterable[Entry],
    python: PycCompiler,
    *,
    image_python: str,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Iterator[Entry]:
    """Yield entries, and beside each Python source its .pyc by a compiler of ``image_python``."""
    tag = f"cpython-{image_python.replace('.', '')}"
    files, done_bytes = list(entries), 0
    total_bytes = sum(entry.size_bytes for entry in files if _is_source(entry))
    with python as compiler:
        for entry in files:
            yield entry
            if not _is_source(entry):
                continue
            folder, _, name = entry.path.rpartition("/")
            code = compiler.compile(entry.read(), f"/{entry.path}")
            if code:
                yield file_of_bytes(f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc", code)
            done_bytes += entry.size_bytes
            progress(done_bytes, total_bytes)


def _is_source(entry: Entry) -> bool:
    return entry.kind is Kind.FILE and entry.path.endswith(".py")
