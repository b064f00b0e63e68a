"""Checks groups against their digests by reading them a second time, several at once."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from zse.format.errors import Rule

if TYPE_CHECKING:
    from zse.stream.plan import GroupReads, ReadPlan
    from zse.stream.source import ByteSource


def verify_groups(source: ByteSource, plan: ReadPlan, threads: int) -> float:
    """Check every group of a plan; return the seconds it took.

    Raises:
        FormatError: A group differs from its digest.
        StoreError: The source failed.
    """
    started = time.perf_counter()
    with ThreadPoolExecutor(threads, thread_name_prefix="zse-verify") as pool:
        checks = [pool.submit(_check, source, group) for group in plan.groups]
        try:
            for check in checks:
                check.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return time.perf_counter() - started


def _check(source: ByteSource, group: GroupReads) -> None:
    digest = hashlib.sha256()
    largest = max((chunk.length_bytes for chunk in group.chunks), default=0)
    buffer = memoryview(bytearray(largest))
    for chunk in group.chunks:
        view = buffer[: chunk.length_bytes]
        source.read_into(chunk.offset_bytes, view)
        digest.update(view)
    if digest.hexdigest() != group.sha256:
        raise Rule.CHECKSUM_MISMATCH(
            f"group {group.name} of {source.name} has SHA-256 {digest.hexdigest()}, "
            f"expected {group.sha256}"
        )
