"""A control group of a benchmark's own, with a share or a quota, and busy neighbours in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

LEGACY_CPU = Path("/sys/fs/cgroup/cpu")
UNIFIED = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 100_000


class ControlGroup:
    """A control group of this benchmark's own, of either version; gone when closed.

    Args:
        name: Where a benchmark has several.
        period_microseconds: In which a quota is given; in short ones processes stand still shorter.

    Raises:
        UsageError: None can be made here, or it would have no say over CPU time.
    """

    def __init__(self, name: str = "", *, period_microseconds: int = PERIOD_MICROSECONDS) -> None:
        self._period = period_microseconds
        self._is_legacy = (LEGACY_CPU / "cpu.cfs_quota_us").exists() or LEGACY_CPU.is_dir()
        self._folder = (
            LEGACY_CPU if self._is_legacy else UNIFIED
        ) / f"zse-bench-{os.getpid()}{name}"
        try:
            if not self._is_legacy:
                (UNIFIED / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir()
        except OSError as error:
            raise UsageError(
                f"no control group can be made: {error}", hint="Run as root."
            ) from error

    def set_quota(self, cores: float) -> None:
        """Limit the group to so many cores' worth of time; 0 takes the limit away."""
        quota = int(cores * self._period)
        if self._is_legacy:
            (self._folder / "cpu.cfs_period_us").write_text(str(self._period))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota or -1))
        else:
            (self._folder / "cpu.max").write_text(f"{quota or 'max'} {self._period}")

    def set_shares(self, shares: int) -> None:
        """Weigh the group against others; 1024 is usual."""
        if self._is_legacy:
            (self._folder / "cpu.shares").write_text(str(shares))
        else:
            (self._folder / "cpu.weight").write_text(str(max(1, min(10000, shares // 10))))

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Have this process in the group, and whatever it starts meanwhile."""
        move_to(self._folder)
        try:
            yield
        finally:
            move_to(self._folder.parent)

    def command(self, *words: str) -> list[str]:
        """Return a command that runs ``words`` in this group."""
        script = f'echo $$ > {self._folder}/cgroup.procs && exec "$@"'
        return ["sh", "-c", script, "sh", *words]

    def close(self) -> None:
        self._folder.rmdir()


def move_to(folder: Path) -> None:
    """Put this process into a control group."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def busy_neighbours(group: ControlGroup, count: int) -> Iterator[None]:
    """Keep ``count`` processes busy for as long as the context lasts."""
    command = group.command(sys.executable, "-c", "while True: pass")
    running = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
