"""The release: few rights, commands that exist, nothing published that two builds disagree on."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

import zse
from zse import cli
from zse.kernels.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW: dict[str, Any] = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "release.yml").read_text()
)
SYSTEMS = ("ubuntu-22.04", "ubuntu-24.04")
# Programs that scripts/release calls; a build leaves an empty file of the right name.
PYTHON = """#!/usr/bin/env bash
if [ "$1" = -m ]; then echo "$SOURCE_DATE_EPOCH" > "$5/zse.whl"; touch "$5/zse.tar.gz"; else exec REAL "$@"; fi
"""
ZSE = """#!/usr/bin/env bash
echo "$@" >> "$RECORD"
for last; do :; done
if [ "$1" = build-image ]; then
    for word; do case $word in tar:*) touch "${word#tar:}" ;; esac; done
    echo "sha256:$(echo "$@" | sha256sum | cut -c 1-64)"
    exit
fi
if [ "$1" = image ]; then echo '{"spdxVersion": "SPDX-2.3"}'; exit; fi
if [ "$1" = man ]; then mkdir "$last" && touch "$last/zse.1"; exit; fi
for word; do case $word in sm_*) touch "$last/$word.zkp" ;; esac; done
"""


def step_of(job: str, name: str) -> dict[str, Any]:
    (step,) = [step for step in WORKFLOW["jobs"][job]["steps"] if step.get("name") == name]
    return step


def run_step(job: str, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step_of(job, name)["run"]],
        env={**os.environ, **environment},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


def check_arguments(words: list[str]) -> None:
    """Let the command line parse a call; an option that is not there is an error."""
    command: Any = cli.cli
    context = typer.Context(command, info_name="zse")
    while isinstance(command, TyperGroup):
        found = command.get_command(context, words.pop(0))
        assert found is not None, words
        command = found
    command.make_context("zse", words, parent=context)


def test_only_the_job_that_publishes_may_write() -> None:
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    rights = {"contents": "write", "packages": "write", "id-token": "write"}
    assert jobs["publish"]["permissions"] == rights
    assert jobs["publish"]["needs"] == "build"
    # What is checked out and built never runs where a token may write.
    assert not [s for s in jobs["publish"]["steps"] if "checkout" in s.get("uses", "")]


def test_the_two_builds_are_made_on_two_systems() -> None:
    build = WORKFLOW["jobs"]["build"]
    assert tuple(build["strategy"]["matrix"]["system"]) == SYSTEMS
    assert build["runs-on"] == "${{ matrix.system }}"


def test_what_decides_bytes_is_installed_in_one_version() -> None:
    packages = step_of("build", "Install")["run"].split()[5:]
    assert packages[0] == "'.[kernels]'"
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", package) for package in packages[1:])


@pytest.mark.parametrize(("tag", "code"), [(f"v{zse.__version__}", 0), ("v9.9.9", 1), ("", 1)])
def test_a_tag_that_is_not_the_version_is_not_released(tag: str, code: int) -> None:
    assert run_step("build", "Check that the tag is the version", TAG=tag).returncode == code


@pytest.fixture
def builds(tmp_path: Path) -> Path:
    for system in SYSTEMS:
        folder = tmp_path / f"release-{system}"
        folder.mkdir()
        (folder / "sm_90.zkp").write_bytes(b"kernels")
        digest = hashlib.sha256(b"kernels").hexdigest()
        (folder / "SHA256SUMS").write_text(f"{digest}  sm_90.zkp\n")
    return tmp_path


def test_two_builds_that_agree_go_on(builds: Path) -> None:
    assert run_step("publish", "Compare the two builds", RUNNER_TEMP=str(builds)).returncode == 0


@pytest.mark.parametrize("name", ["SHA256SUMS", "sm_90.zkp"])
def test_builds_that_differ_or_arrive_damaged_are_not_published(builds: Path, name: str) -> None:
    path = builds / "release-ubuntu-24.04" / name
    path.write_bytes(path.read_bytes() + b"!")
    assert run_step("publish", "Compare the two builds", RUNNER_TEMP=str(builds)).returncode != 0


def test_the_packs_are_checked_and_pushed_with_commands_that_exist() -> None:
    text = "\n".join(step.get("run", "") for step in WORKFLOW["jobs"]["publish"]["steps"])
    calls = re.findall(r"\bzse ((?:kernels|image) [^;)\n]+)", text)
    assert [call.split()[:2] for call in calls] == [
        ["kernels", "verify"], ["kernels", "push"], ["image", "push"],
    ]  # fmt: skip
    for call in calls:
        check_arguments([word.strip('"') for word in call.split()])


@pytest.mark.parametrize(("answer", "code"), [("sha256:aa", 0), ("sha256:bb", 1)])
def test_an_image_that_arrives_with_another_digest_ends_the_release(
    tmp_path: Path, answer: str, code: int
) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "release-ubuntu-24.04"
    programs.mkdir()
    folder.mkdir()
    (folder / "IMAGES").write_text("sha256:aa  ghcr.io/me/zse:1.0.0-cpu\n")
    (programs / "zse").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/record\necho {answer}\n')
    (programs / "zse").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    name = "Push the images, each with the digest that both builds gave it"
    done = run_step("publish", name, RUNNER_TEMP=str(tmp_path), PATH=path)
    assert done.returncode == code, done.stderr
    said = (tmp_path / "record").read_text()
    assert said == "image push tar:zse-image-cpu.tar ghcr.io/me/zse:1.0.0-cpu\n"


def test_long_notes_are_cut_at_a_line_to_what_github_takes(tmp_path: Path) -> None:
    programs, folder = tmp_path / "bin", tmp_path / "release-ubuntu-24.04"
    programs.mkdir()
    folder.mkdir()
    line = "- what changed, in the words of its author: naïve, größer\n"
    (folder / "CHANGES.md").write_text(line * 5000)
    (programs / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$RECORD"\n')
    (programs / "gh").chmod(0o755)
    values = {"TAG": "v1.0.0", "REPOSITORY": "me/zse", "RECORD": str(tmp_path / "record")}
    path = f"{programs}:{os.environ['PATH']}"
    done = run_step("publish", "Make the release", RUNNER_TEMP=str(tmp_path), PATH=path, **values)
    assert done.returncode == 0, done.stderr
    notes = (tmp_path / "notes.md").read_text()
    assert 100_000 < len(notes) < 125_000
    assert set(notes.splitlines(keepends=True)) == {line}
    said = (tmp_path / "record").read_text().splitlines()
    assert said[said.index("--notes-file") + 1] == str(tmp_path / "notes.md")
    assert said[-1] == str(folder / "CHANGES.md"), "all of it is among the files"


def test_the_script_makes_everything_and_lists_it(tmp_path: Path) -> None:
    import sys

    programs, out = tmp_path / "bin", tmp_path / "out"
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", key], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    programs.mkdir()
    for name, text in {"python": PYTHON.replace("REAL", sys.executable), "zse": ZSE}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "RECORD": str(tmp_path / "record"),
        "ZSE_RELEASES": "https://example.com/releases",
        "ZSE_SIGNING_KEY": str(key),
        "ZSE_IMAGES": "ghcr.io/me/zse",
    }
    subprocess.run([ROOT / "scripts" / "release", out], env=environment, check=True)
    names = {"zse.whl", "zse.tar.gz", "zse-man.tgz", "install.sh", "CHANGES.md"}
    names |= {"zse-chart.tgz", "zse.cdx.json", "zse.rb", "IMAGES"}
    names |= {f"zse-image-{recipe}.tar" for recipe in ("cpu", "cuda")}
    names |= {
        f"zse-image-{recipe}.{platform}.spdx.json"
        for recipe in ("cpu", "cuda")
        for platform in ("amd64", "arm64")
    }
    names |= {f"{name}.zkp" for name in TARGETS}
    listed = (out / "SHA256SUMS").read_text().splitlines()
    assert {line.split()[1] for line in listed} == names
    assert {path.name for path in out.iterdir()} == names | {"SHA256SUMS", "SHA256SUMS.sig"}
    images = [line.split() for line in (out / "IMAGES").read_text().splitlines()]
    assert [name for _, name in images] == [
        f"ghcr.io/me/zse:{zse.__version__}-{recipe}" for recipe in ("cpu", "cuda")
    ]
    assert int((out / "zse.whl").read_text()) > 0  # the commit's time, not today's
    for line in (tmp_path / "record").read_text().splitlines():
        check_arguments(line.split())
    assert "RELEASES=https://example.com/releases\n" in (out / "install.sh").read_text()
    signature = ["openssl", "dgst", "-sha256", "-verify", str(public), "-signature"]
    subprocess.run([*signature, out / "SHA256SUMS.sig", out / "SHA256SUMS"], check=True)


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), ([], 2), (["--now"], 2)])
def test_the_script_says_what_it_takes_and_makes_no_folder(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    command = [str(ROOT / "scripts" / "release"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "scripts/release FOLDER" in (done.stderr if code else done.stdout)
    assert not any(tmp_path.iterdir())
