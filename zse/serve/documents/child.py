"""Reads one document of unknown origin in a process of its own, which gives up its rights first.

Parsers are large, and documents come from anybody. What a parser could do here is bounded: memory,
time and output by limits; files but Python's own libraries, and the network, by Landlock and a
network namespace where the kernel has them. The document is standard input and the blocks go to
standard output; both are open files, so nothing has to be opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
from pathlib import Path

from zse.errors import ZSEError
from zse.serve.documents.parsing import KINDS, parse
from zse.units import MIB

MEMORY_BYTES = 1024 * MIB
CPU_SECONDS = 30
OUTPUT_BYTES = 64 * MIB
NUM_FILES = 32
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9
_SYS_LANDLOCK = 444
"""Makes a set of rules; the next two numbers add one, and bind the process."""
_READ_FILE, _READ_FOLDER = 4, 8
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Read what standard input holds; the first argument is its kind."""
    kind = sys.argv[2]
    if kind not in KINDS:
        raise SystemExit(2)
    _import_parser(kind)
    give_up_rights()
    try:
        blocks = parse(kind, sys.stdin.buffer.read())
        said: dict[str, object] = {"blocks": [[b.text, b.page, b.heading] for b in blocks]}
    except ZSEError as error:
        said = {"error": error.message, "hint": error.hint, "is_missing": error.exit_code == 5}
    except (MemoryError, RecursionError) as error:
        said = {"error": f"it takes more than reading it may: {type(error).__name__}"}
    text = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    os._exit(0)


def _import_parser(kind: str) -> None:
    """Import what is going to be needed, while files can still be opened freely."""
    with contextlib.suppress(ImportError):
        if kind == "pdf":
            import pypdf  # noqa: F401
        if kind == "docx":
            import zse.serve.documents.word_files
        if kind == "html":
            import zse.serve.documents.web_pages  # noqa: F401


def give_up_rights() -> None:
    """Bind this process to what reading a document takes; what the kernel lacks is left out."""
    _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.unshare(_NEW_USER | _NEW_NETWORK)
    _shut_files()
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
        (resource.RLIMIT_NOFILE, NUM_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CPU, CPU_SECONDS),
    ):
        resource.setrlimit(name, (value, value))


def _shut_files() -> None:
    """Leave the libraries to read by Landlock (landlock(7)), nothing to write and no TCP."""
    version = _libc.syscall(_SYS_LANDLOCK, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    num_kinds = 13 + sum(version >= since for since in (2, 3, 5))
    fields = [(1 << num_kinds) - 1, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    ruleset = (ctypes.c_uint64 * len(fields))(*fields)
    rules = _libc.syscall(_SYS_LANDLOCK, ruleset, ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if rules < 0:
        return
    for place in ("/usr/lib", "/lib", "/lib64", sys.base_prefix + "/lib", *sys.path):
        if not place or not Path(place).is_dir():
            continue
        handle = os.open(place, os.O_PATH)
        beneath = _Beneath(_READ_FILE | _READ_FOLDER, handle)
        _libc.syscall(_SYS_LANDLOCK + 1, rules, 1, ctypes.byref(beneath), 0)
        os.close(handle)
    _libc.syscall(_SYS_LANDLOCK + 2, rules, 0)
    os.close(rules)


class _Beneath(ctypes.Structure):
    """What a rule lets be done below a folder that is open."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("handle", ctypes.c_int32))
