"""The limits of this process's container: processor time and memory, as the kernel's files say.

Both versions of control groups are read. A limit may stand at the process's own group or at any
group above it, and the tightest one holds. Inside a container the path that ``/proc/self/cgroup``
names may belong to the host: then the mount's own root is the group.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MOUNT = "sys/fs/cgroup"


@record
class MemoryLimit:
    """What one control group allows and what it holds, in bytes."""

    limit_bytes: int
    used_bytes: int
    """Without the file pages that the kernel would drop at once."""


def cpu_quota(root: Path) -> float:
    """Return how many CPUs' worth of time this process may use; 0 where nothing limits it."""
    unified = (read_text(folder / "cpu.max").split() for folder in _groups(root, ""))
    legacy = (
        [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        for folder in _groups(root, "cpu")
    )
    # Microseconds of a period, or "max" (version 2) and -1 (version 1) for no quota.
    limits = [words for words in (*unified, *legacy) if len(words) == 2]
    quotas = [
        int(quota) / max(int(period), 1)
        for quota, period in limits
        if quota.isdigit() and period.isdigit()
    ]
    return min(quotas, default=0.0)


def memory_limits(root: Path) -> list[MemoryLimit]:
    """Return the memory limits that hold for this process, its own group's first."""
    unified = [
        _memory_limit(folder, "memory.max", "memory.current", "inactive_file")
        for folder in _groups(root, "")
    ]
    legacy = [
        _memory_limit(
            folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        )
        for folder in _groups(root, "memory")
    ]
    return [limit for limit in (*unified, *legacy) if limit is not None]


def read_text(path: Path) -> str:
    """Return what a file of the kernel's says; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it.

    ``controller`` is one of version 1; empty means version 2.
    """
    mount = root / _MOUNT / controller
    own = PurePosixPath(_group_path(root, controller).lstrip("/"))
    for path in (own, *own.parents):
        if ".." not in path.parts:
            yield mount / path


def _group_path(root: Path, controller: str) -> str:
    """Return the path in ``/proc/self/cgroup``: lines are ``number:controllers:path``."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return "/"


def _memory_limit(
    folder: Path, limit_name: str, used_name: str, reclaimable_name: str
) -> MemoryLimit | None:
    limit = read_text(folder / limit_name).strip()
    used = read_text(folder / used_name).strip()
    if not (limit.isdigit() and used.isdigit()):
        return None
    found = re.search(
        rf"^{reclaimable_name} (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE
    )
    reclaimable = int(found[1]) if found else 0
    return MemoryLimit(limit_bytes=int(limit), used_bytes=max(int(used) - reclaimable, 0))
