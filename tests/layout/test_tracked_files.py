"""What the repository holds: sources, and no packages that somebody fetched to try something."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {".deb", ".rpm", ".apk", ".whl", ".so"}


def test_no_package_or_library_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = [Path(line) for line in listed.stdout.splitlines()]
    assert len(tracked) > 1000
    assert [str(path) for path in tracked if path.suffix in PACKAGES] == []
