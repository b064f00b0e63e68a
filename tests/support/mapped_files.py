"""What this process has in memory of the files that it maps."""

from __future__ import annotations

import re
from pathlib import Path


def mapped_bytes(path: Path) -> int:
    """Return how much of a file's mapping is present."""
    maps = Path("/proc/self/smaps").read_text()
    sizes = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    return sum(map(int, sizes)) * 1024
