"""The documents' lines, pasted into a fresh environment of each Python, with and without extras.

A hub's model is stood in for by the built-in one, and files that a page takes for granted are
there. What a line needs beyond that stands in ``documents.NEEDS``; all others are run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import ROOT, Line, lines, need_of, programs

from zse.errors import MissingDependencyError
from zse.format import convert_model
from zse.install import TORCH_CPU_INDEX
from zse.models.builtin import builtin_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
PYTHONS = ("3.11", "3.12", "3.13")
STAND_INS = {"Qwen/Qwen2.5-7B-Instruct": "tiny", ".venv/bin/zse": "zse", "./my-checkpoint": "tiny"}
FOLDERS = ("fine-tuned", "base", "logits-only")
FILES = ("qwen.zse", "qwen-7b.zse", "qwen-72b.zse", "model.zse", "my.zse")
READY_SECONDS = 120


def find_python(version: str) -> str:
    """Return the interpreter of a version."""
    found = shutil.which(f"python{version}")
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if found is None and not installed:
        pytest.fail(f"no Python {version} on this machine")
    return str(installed[-1]) if installed else str(found)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        find_python(PYTHONS[0]),
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    (path,) = folder.glob("zse_toolkit-*.whl")
    return path


class Desk:
    """A folder with an environment first on its path, in which lines are pasted."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self._home = self._folder = folder
        self._page = ""
        self._variables = {
            **os.environ,
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "ZSE_CACHE_DIR": str(folder / ".cache"),
        }

    def open_page(self, page: str, model: Path) -> None:
        """Begin a page: a folder of its own, with what the documents take for granted."""
        if page == self._page:
            return
        self._page = page
        self._folder = self._home / page.replace("/", "-")
        self._folder.mkdir(exist_ok=True)
        for name in FILES:
            shutil.copy(model, self._folder / name)
        for name in FOLDERS:
            shutil.copytree(builtin_checkpoint("tiny"), self._folder / name)
        (self._folder / "chat.jinja").write_text("{{ messages[-1].content }}")

    def paste(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a line in a shell; a server is stopped once it is ready."""
        for shown, real in STAND_INS.items():
            text = text.replace(shown, real)
        command = ["bash", "-c", text.partition("  #")[0].rstrip(" &")]
        if "zse serve" in text or "zse.serve" in text:
            return self._serve(command)
        return subprocess.run(
            command,
            cwd=self._folder,
            env=self._variables,
            input="What is the capital of France?\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )

    def _serve(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command[-1] = f"exec {command[-1]} --port {port}"
        server = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        ends = time.monotonic() + READY_SECONDS
        while server.poll() is None and time.monotonic() < ends and not is_ready(port):
            time.sleep(0.2)
        server.terminate()
        out, err = server.communicate(timeout=120)
        return subprocess.CompletedProcess(command, server.returncode, out, err)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module", params=PYTHONS)
def make_desk(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Desk]:
    """Install the wheel with some extras into an environment of its own."""

    def make(extras: str) -> Desk:
        folder = tmp_path_factory.mktemp("desk")
        environment = folder / ".env"
        subprocess.run([find_python(request.param), "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "-q"]
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        index = ["--extra-index-url", TORCH_CPU_INDEX] if extras else []
        subprocess.run([*pip, *index, wanted], check=True)
        return Desk(folder, environment)

    return make


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert the built-in model once, with what runs the tests."""
    path = tmp_path_factory.mktemp("model") / "tiny.zse"
    convert_model("tiny", path)
    return path


RUN = [
    line for line in lines() if not need_of(line) and "zse" in line.text and "curl" not in line.text
]


def failures(desk: Desk, model: Path, allowed: frozenset[int]) -> list[str]:
    found = []
    for line in RUN:
        desk.open_page(line.page, model)
        done = desk.paste(forced(line))
        if done.returncode not in allowed or "Traceback" in done.stderr:
            found.append(f"{line}\n  ended with {done.returncode}: {done.stderr[-400:]}")
    return found


def forced(line: Line) -> str:
    """A page's second conversion to the same file is another reader's first."""
    return line.text.replace("zse convert ", "zse convert --force ")


def test_with_the_extras_every_line_works(make_desk: Callable[[str], Desk], model: Path) -> None:
    assert failures(make_desk("convert"), model, frozenset({0})) == []


def test_without_extras_every_line_works_or_names_its_extra(
    make_desk: Callable[[str], Desk], model: Path
) -> None:
    allowed = frozenset({0, MissingDependencyError.exit_code})
    assert failures(make_desk(""), model, allowed) == []


def test_with_the_extras_every_program_of_a_page_runs(make_desk: Callable[[str], Desk]) -> None:
    desk = make_desk("convert,hf")
    for page in dict.fromkeys(page for page, _ in programs()):
        text = "\n".join(text for name, text in programs() if name == page)
        done = desk.paste(f"python -c {shlex.quote(text)}")
        assert done.returncode == 0, f"{page}: {done.stderr[-800:]}"
