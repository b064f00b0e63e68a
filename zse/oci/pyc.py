"""Byte code for the image, made on this machine without running the image.

Layers have one fixed time stamp, so ordinary .pyc files would all look stale and cost more than
none. Unchecked-hash files are never compared with their source: importing them takes half the time.
They fit one minor version of Python, so they are made only when this interpreter has the image's.
"""

from __future__ import annotations

import platform
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zse.errors import ImageError
from zse.oci.tar import Entry, Kind, file_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HOST_PYTHON = platform.python_version()


def host_can_compile(image_python: str) -> bool:
    """Tell whether this interpreter makes byte code for ``image_python`` ("3.11")."""
    major, minor = sys.version_info[:2]
    return sys.implementation.name == "cpython" and image_python == f"{major}.{minor}"


class PycCompiler:
    """A clean child interpreter that compiles one source after the other."""

    def __enter__(self) -> Self:
        worker = Path(__file__).with_name("pyc_worker.py")
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-W", "ignore", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
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


def with_byte_code(entries: Iterable[Entry], *, image_python: str) -> Iterator[Entry]:
    """Yield ``entries``, and beside each Python source its .pyc.

    Args:
        entries: The files of a layer.
        image_python: Minor version of the image's Python ("3.11"); must be this interpreter's.
    """
    tag = f"cpython-{image_python.replace('.', '')}"
    with PycCompiler() as compiler:
        for entry in entries:
            yield entry
            if entry.kind is not Kind.FILE or not entry.path.endswith(".py"):
                continue
            folder, _, name = entry.path.rpartition("/")
            code = compiler.compile(entry.read(), f"/{entry.path}")
            if code:
                yield file_of_bytes(f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc", code)
