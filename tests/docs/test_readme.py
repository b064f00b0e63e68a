"""The README's lines and programs are run, its links and extras lead somewhere; tests/first_hour holds all lines of the documents."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_first_commands_exist_and_ci_runs_the_second() -> None:
    demo, test = (line.split()[0] for line in blocks(README, "bash")[0].splitlines())
    assert os.access(ROOT / demo, os.X_OK)
    assert os.access(ROOT / test, os.X_OK)
    assert re.search(rf"^(if )?{test}(;|$)", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)


def test_every_extra_has_a_line_in_the_install_guide() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    guide = (ROOT / "docs/guides/install.md").read_text()
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", guide, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert set(project["optional-dependencies"]) <= named


def test_what_the_docs_install_are_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for page in PAGES
        for block in blocks(page.read_text(), "(?:bash)?")
        for group in re.findall(r"(?:\.|\.whl|zse-toolkit)\[([\w,]+)\]", block)
        for extra in group.split(",")
    }
    assert {"convert", "s3"} <= named
    assert named <= set(project["optional-dependencies"])


def test_every_guide_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/guides/[\w-]+\.md)", README))
    assert {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/guides").glob("*.md")
    } <= linked


def test_the_picture_of_the_layers_names_packages_that_there_are() -> None:
    picture = (ROOT / "docs/images/layers.svg").read_text()
    named = {
        name
        for row in re.findall(r'font-weight="600"[^>]*>(.*?)<', picture)
        for name in row.split(" · ")
    }
    there = {path.stem for path in (ROOT / "zse").iterdir()}
    assert {"engine", "models", "backends"} <= named <= there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.slow
def test_the_readmes_program_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(blocks(README, "python")[0])
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert "cold" in run.stdout.lower()


@pytest.mark.slow
def test_the_programs_of_the_python_guide_run_and_print_what_they_say(tmp_path: Path) -> None:
    program = "\n".join(blocks((ROOT / "docs/guides/python.md").read_text(), "python"))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    expected = re.findall(r"# prints: (.*)", program)
    assert len(expected) >= 5
    at = 0
    for words in expected:
        at = run.stdout.lower().index(words.lower(), at)


@pytest.mark.slow
def test_the_readmes_curl_gets_an_answer(tmp_path: Path) -> None:
    serve, curl = blocks(README, "bash")[1].split("&\n", 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = shlex.split(serve)
    assert words[0].endswith("zse")
    server = subprocess.Popen([sys.executable, "-m", "zse", *words[1:], "--port", str(port)])
    try:
        wait_until_ready(port)
        line = curl.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        run = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        assert "Paris" in json.loads(run.stdout)["choices"][0]["message"]["content"]
    finally:
        server.terminate()
        assert server.wait(60) == 0


def wait_until_ready(port: int) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=60).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server was not ready in 60 seconds")
