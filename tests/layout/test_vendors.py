"""Whose GPU it is stands in the device layer alone."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2] / "zse"


def test_no_file_above_the_devices_names_a_vendors_driver_not_even_for_a_type() -> None:
    files = [path for path in ROOT.rglob("*.py") if (ROOT / "device") not in path.parents]
    assert files
    assert not [path for path in files if "device.cuda" in path.read_text(encoding="utf-8")]
