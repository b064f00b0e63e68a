"""Replicas as actors of Ray Serve, on a real cluster of one machine."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zse.settings import subprocess_environment

ROOT = Path(__file__).parents[2]
APP = ROOT / "functions" / "ray" / "ray_app.py"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]


def test_an_actor_is_woken_by_a_request_answers_as_a_server_does_and_sleeps_again(tmp_path):
    text = APP.read_text()
    for name, value in {"IDLE_SECONDS": 3, "NUM_GPUS": 0, "DRAIN_SECONDS": 5}.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.M)
        assert count == 1
    (tmp_path / "ray_app.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ray_child.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
        env=subprocess_environment(
            PYTHONPATH=f"{ROOT}:{tmp_path}",
            ZSE_MODEL="tiny",
            ZSE_DEVICE="cpu",
            ZSE_MAX_CONTEXT="512",
            OMP_NUM_THREADS="1",
            RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
        ),
    )
    told = [line for line in done.stdout.splitlines() if line.startswith('{"at_first"')]
    assert told, done.stdout + done.stderr
    seen = json.loads(told[0])
    assert (seen["at_first"], seen["at_last"]) == (0, 0)
    assert seen["text"] == seen["streamed"] == seen["woken_again"]
    assert seen["refused"] == 400
