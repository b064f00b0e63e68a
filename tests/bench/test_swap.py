"""The bench of models that change places."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "swap.py"


@pytest.mark.slow
def test_it_reports_swaps_sleep_and_memory() -> None:
    command = [sys.executable, str(BENCH), "tiny", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["models"]) == {"a", "b"}
    for one in result["models"].values():
        assert one["stay_first_token_ms_p50"] > 0
        assert one["swap_in_server_ms_mean"] > 0
    assert [one["level"] for one in result["sleep"]] == [1, 2]
    assert all(one["asleep_resident_bytes"] > 0 for one in result["sleep"])
