"""On an H200 every matrix of a 7B and a 32B model is multiplied as it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path

GOLDEN = Path(__file__).parents[2] / "golden"
sys.path.insert(0, str(GOLDEN))

import plans_h200  # noqa: E402


def test_the_choices_for_an_h200_are_those_on_record() -> None:
    recorded = json.loads((GOLDEN / "plans_h200.json").read_text(encoding="ascii"))
    assert plans_h200.plans() == recorded
