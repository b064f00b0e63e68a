"""The main job as a newcomer runs it; it fetches packages and wheels the first time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import demo_runners  # noqa: E402

CONFIG = {
    "Entrypoint": ["python3", "-I", "/opt/zse/boot.py"],
    "Env": ["A=1", "PORT=8000"],
    "User": "65532:65532",
}


@pytest.fixture
def image(tmp_path):
    rootfs = tmp_path / "rootfs"
    (rootfs / "opt" / "zse").mkdir(parents=True)
    (rootfs / "opt" / "zse" / "boot.py").write_text("")
    return demo_runners.Image(
        layout=tmp_path / "layout", tag="t", rootfs=rootfs, config=CONFIG, scratch=tmp_path
    )


def demo(work: Path, *arguments: str) -> dict:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts" / "demo_job.py"),
            "--json",
            "--work",
            work,
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_image_of_the_built_in_model_answers_and_has_one_digest(tmp_path):
    first = demo(tmp_path)
    assert "Paris" in first["answer"]
    assert first["image_mb"] < 400
    assert "ready" in first["server_timing"]
    again = demo(tmp_path, "--runner", "unpacked layers")
    assert "Paris" in again["answer"]
    assert again["digest"] == first["digest"]
    assert list(tmp_path.iterdir()) == []


def test_entry_point_and_environment_are_the_images_own(image):
    command = demo_runners.unpacked(image, [], {"PORT": "9"})
    assert "A=1" in command
    assert "PORT=9" in command
    assert command[-1] == f"{image.rootfs}/opt/zse/boot.py"


def test_first_runner_that_starts_python_is_chosen(image, monkeypatch):
    said: list[str] = []

    def absent(*_):
        raise FileNotFoundError("absent is not installed")

    runners = {
        "absent": absent,
        "broken": lambda *_: ["false"],
        "works": lambda *_: ["echo", "started"],
        "later": lambda *_: ["echo", "started"],
    }
    monkeypatch.setattr(demo_runners, "RUNNERS", runners)
    assert demo_runners.first_that_works(image, "", said.append) == "works"
    assert len(said) == 3


def test_machine_without_any_runner_is_told(image, monkeypatch):
    monkeypatch.setattr(demo_runners, "RUNNERS", {"broken": lambda *_: ["false"]})
    with pytest.raises(RuntimeError, match="nothing here"):
        demo_runners.first_that_works(image, "", lambda _: None)
