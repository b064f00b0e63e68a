"""The small image has the digests that stand in tests/golden, on any machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
sys.path.insert(0, str(GOLDEN))

import small_image  # noqa: E402


def test_small_image_has_the_golden_digests(tmp_path: Path) -> None:
    recorded = json.loads((GOLDEN / "small_image.json").read_text())
    assert small_image.digests(tmp_path) == recorded
