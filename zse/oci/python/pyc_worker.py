"""Compiles sources to .pyc in a clean interpreter; run as ``python -I -S pyc_worker.py``.

It imports as little as possible, always the same: which objects marshal writes as references
follows what else the process has interned, so a compiler that lives in a busy process would write
different bytes each time. Frames on standard input: u32 length of path, path, u32 length of source,
source. Answers: u32 length, bytes; length 0 means the source does not compile.
"""

import marshal
import struct
import sys
from importlib.util import MAGIC_NUMBER, source_hash

UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: hash-based, source never looked at


def compile_source(source: bytes, path: str) -> bytes:
    """Return the .pyc of ``source``, or nothing when it is not valid Python."""
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):
        return b""
    return MAGIC_NUMBER + UNCHECKED_HASH + source_hash(source) + marshal.dumps(code)


def serve() -> None:
    read, write = sys.stdin.buffer.read, sys.stdout.buffer.write
    while head := read(4):
        path = read(struct.unpack("<I", head)[0]).decode()
        source = read(struct.unpack("<I", read(4))[0])
        answer = compile_source(source, path)
        write(struct.pack("<I", len(answer)) + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
