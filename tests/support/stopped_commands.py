"""Runs a zse command in a child process that gets a signal at a chosen point, and says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHILD = """
import importlib, os, sys
from zse.cli import main
from zse.store import s3_upload

point, number, calls, part_bytes, *arguments = sys.argv[1:]
s3_upload.PART_BYTES = int(part_bytes)
s3_upload.WRITERS = 1
module, owner, name = point.split(":")
holder = getattr(importlib.import_module(module), owner)
original, seen = getattr(holder, name), []

def call(*args, **kwargs):
    result = original(*args, **kwargs)
    seen.append(1)
    if len(seen) == int(calls):
        os.kill(os.getpid(), int(number))
    return result

setattr(holder, name, call)
main(arguments)
"""
SEND_PART = "zse.store.s3_upload:_Upload:_send_part"
WRITE_PART = "zse.format.writer:ZSEWriter:write_part"
WRITE_CHUNK = "zse.store.partial:PartialWriter:write"
WRITE_PLAIN_CHUNK = "zse.store.local:LocalWriter:write"


def run_stopped(
    arguments: Sequence[str],
    *,
    point: str,
    number: int = signal.SIGTERM,
    calls: int = 2,
    part_bytes: int = 5 << 20,
    environment: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run ``zse ARGUMENTS``; after ``calls`` calls of ``point`` the process signals itself."""
    facts = [point, str(int(number)), str(calls), str(part_bytes)]
    return subprocess.run(
        [sys.executable, "-c", CHILD, *facts, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
