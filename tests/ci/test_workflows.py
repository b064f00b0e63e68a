"""The workflow, the reusable action and the examples: their form, and every command that they run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer.core import TyperGroup

from zse import cli
from zse.install import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github" / "actions" / "zse-image" / "action.yml"
WORKFLOWS = [
    ROOT / ".github" / "workflows" / "zse-image.yml",
    ROOT / "examples" / "ci" / "github.yml",
]
OWN_WORKFLOWS = [ROOT / ".github" / "workflows" / name for name in ("release.yml", "nightly.yml")]
TEXT = {"type": "string", "minLength": 1}
STEP: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": TEXT,
        "id": {"type": "string", "pattern": "^[a-z]+$"},
        "if": TEXT,
        "uses": {"type": "string", "pattern": r"^(\./[\w./-]+|[\w./-]+@[\w.-]+)$"},
        "run": TEXT,
        "shell": {"const": "bash"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "with": {"type": "object", "additionalProperties": {"type": ["string", "boolean"]}},
    },
    "oneOf": [{"required": ["uses"]}, {"required": ["run"]}],
}
ACTION_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "description", "inputs", "outputs", "runs"],
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "inputs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["description"],
                "properties": {
                    "description": TEXT,
                    "required": {"type": "boolean"},
                    "default": {"type": "string"},
                },
                "oneOf": [{"required": ["required"]}, {"required": ["default"]}],
            },
        },
        "outputs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["description", "value"],
                "properties": {"description": TEXT, "value": TEXT},
            },
        },
        "runs": {
            "type": "object",
            "additionalProperties": False,
            "required": ["using", "steps"],
            "properties": {
                "using": {"const": "composite"},
                "steps": {
                    "type": "array",
                    # A composite action's commands must name their shell.
                    "items": {**STEP, "if": {"required": ["run"]}, "then": {"required": ["shell"]}},
                },
            },
        },
    },
}
PERMISSIONS = {
    "type": "object",
    "additionalProperties": {"enum": ["read", "write", "none"]},
}
WORKFLOW_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "on", "permissions", "jobs"],
    "properties": {
        "name": TEXT,
        "on": {"type": "object", "minProperties": 1},
        "permissions": PERMISSIONS,
        "concurrency": {
            "type": "object",
            "additionalProperties": False,
            "required": ["group"],
            "properties": {"group": TEXT, "cancel-in-progress": {"type": "boolean"}},
        },
        "jobs": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["runs-on", "timeout-minutes", "steps"],
                "properties": {
                    "runs-on": TEXT,
                    "needs": TEXT,
                    "permissions": PERMISSIONS,
                    "strategy": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["matrix"],
                        "properties": {"matrix": {"type": "object", "minProperties": 1}},
                    },
                    "timeout-minutes": {"type": "integer"},
                    "steps": {"type": "array", "items": STEP},
                },
            },
        },
    },
}
# The programs that a step calls, in place of the real ones: they write down how they were called.
RECORDER = """#!/usr/bin/env bash
python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >> "$RECORD"
case $1 in
    convert) echo '{"sha256": "abc"}' ;;
    build-image) echo "sha256:${DIGEST:-d}" ;;
esac
"""


def load(path: Path) -> dict[str, Any]:
    """Read YAML; the key ``on`` is a yes to YAML 1.1."""
    data: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in data.items()}


def steps_of(path: Path) -> list[dict[str, Any]]:
    data = load(path)
    if path == ACTION:
        steps: list[dict[str, Any]] = data["runs"]["steps"]
        return steps
    return [step for job in data["jobs"].values() for step in job["steps"]]


def test_the_action_has_the_form_of_a_composite_action() -> None:
    jsonschema.validate(load(ACTION), ACTION_SCHEMA)


@pytest.mark.parametrize("path", [*WORKFLOWS, *OWN_WORKFLOWS], ids=lambda path: path.name)
def test_a_workflow_has_the_form_of_one_and_asks_for_few_rights(path: Path) -> None:
    data = load(path)
    jsonschema.validate(data, WORKFLOW_SCHEMA)
    assert data["permissions"]["contents"] == "read"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_gives_the_action_only_inputs_that_it_has(path: Path) -> None:
    inputs = load(ACTION)["inputs"]
    (step,) = [step for step in steps_of(path) if "zse-image" in step.get("uses", "")]
    assert set(step["with"]) <= set(inputs)
    assert {name for name, value in inputs.items() if value.get("required")} <= set(step["with"])


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS, *OWN_WORKFLOWS], ids=lambda path: path.name)
def test_no_command_holds_an_expression(path: Path) -> None:
    """An input that is pasted into a command could be a command; in a variable it is text."""
    assert not [step for step in steps_of(path) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS, *OWN_WORKFLOWS], ids=lambda path: path.name)
def test_every_expression_names_what_exists(path: Path) -> None:
    data, text = load(path), path.read_text()
    ids = {step["id"] for step in steps_of(path) if "id" in step}
    assert set(re.findall(r"steps\.(\w+)\.", text)) <= ids
    dispatch = data.get("on", {}).get("workflow_dispatch", {})
    known = data.get("inputs", {}) or dispatch.get("inputs", {})
    assert set(re.findall(r"inputs\.([\w-]+)", text)) <= set(known)


@pytest.mark.parametrize("path", [WORKFLOWS[0], *OWN_WORKFLOWS], ids=lambda path: path.name)
def test_actions_of_others_are_pinned_by_digest_with_their_version_beside_it(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())
    others = [use for use in used if not use.startswith("./")]
    assert others
    assert not [use for use in others if not re.match(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+", use)]


def run_action(folder: Path, inputs: dict[str, str], **environment: str) -> list[list[str]]:
    """Run the commands of the action as a runner does; return how zse and python were called."""
    folder.mkdir()
    for name in ("zse", "python"):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(RECORDER)
        path.chmod(0o755)
    given = {name: value.get("default", "") for name, value in load(ACTION)["inputs"].items()}
    given.update(inputs)
    files = {name: str(folder / name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    base = {
        **os.environ,
        **files,
        **environment,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder),
        "GITHUB_ACTION_PATH": str(ACTION.parent),
        "RECORD": str(folder / "record"),
    }
    for step in steps_of(ACTION):
        condition = re.fullmatch(r"inputs\.([\w-]+) != ''", step.get("if", ""))
        if condition and not given[condition[1]]:
            continue
        values = {
            name: re.sub(
                r"\$\{\{ (inputs|steps)\.([\w.-]+) \}\}",
                lambda found: given[found[2]] if found[1] == "inputs" else "sha256:d",
                value,
            )
            for name, value in step.get("env", {}).items()
        }
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={**base, **values},
            check=True,
            cwd=folder,
        )
    return [json.loads(line) for line in (folder / "record").read_text().splitlines()]


def check_arguments(words: list[str]) -> None:
    """Let the command line parse a call; an option that is not there is an error."""
    command: Any = cli.cli
    context = typer.Context(command, info_name="zse")
    rest = list(words)
    while isinstance(command, TyperGroup):
        found = command.get_command(context, rest.pop(0))
        assert found is not None, words
        command = found
    command.make_context("zse", rest, parent=context)


GIVEN = {"model": "hf://o/n@v 1", "image": "ghcr.io/a/b:1", "extras": ""}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"object": "s3://bucket/a b.zse", "platform": "linux/amd64,linux/arm64"},
        {"object": "s3://bucket/a.zse", "model-mode": "url", "recipe": "cuda", "max-size": "250MB"},
    ],
)
def test_the_action_calls_commands_that_exist_with_options_that_they_have(
    tmp_path: Path, more: dict[str, str]
) -> None:
    calls = run_action(tmp_path / "run", {**GIVEN, **more})
    zse_calls = [call for call in calls if call[0] != "-c"]
    for call in zse_calls:
        check_arguments(call)
    names = [call[0] for call in zse_calls]
    stored = ["push"] * ("object" in more)
    assert names == ["convert", "inspect", *stored, "build-image", "image", "build-image", "image"]
    assert zse_calls[0][1] == "hf://o/n@v 1"
    builds = [call for call in zse_calls if call[0] == "build-image"]
    assert builds[0][: len(builds[1]) - 1] == builds[1][:-1]
    assert builds[1][-1] == "--push"
    wanted = more["object"] if more.get("model-mode") == "url" else str(tmp_path / "run/model.zse")
    assert builds[0][1] == wanted


def test_the_action_installs_the_code_of_its_own_revision(tmp_path: Path) -> None:
    calls = run_action(tmp_path / "run", {**GIVEN, "extras": "convert,s3"})
    assert calls[0] == ["-m", "pip", "install", "--quiet", f"{ROOT}[convert,s3]"]


def test_the_gitlab_example_installs_a_pinned_address_and_no_name_of_an_index() -> None:
    data = load(ROOT / "examples" / "ci" / "gitlab-ci.yml")
    (line,) = data["default"]["before_script"]
    assert line.endswith(f'"{DISTRIBUTION}[convert,s3] @ $ZSE"')
    assert re.search(r"/v\d+\.\d+\.\d+\.", data["variables"]["ZSE"])


def test_an_image_other_than_the_one_that_was_checked_fails_the_action(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_action(tmp_path / "run", GIVEN, DIGEST="other")


def test_the_gitlab_example_calls_commands_that_exist_with_options_that_they_have() -> None:
    data = load(ROOT / "examples" / "ci" / "gitlab-ci.yml")
    lines = [line for job in data.values() if "script" in job for line in job["script"]]
    commands = [line.partition(" > ")[0].split() for line in lines if line.startswith("zse ")]
    assert len(commands) == 6
    for words in commands:
        check_arguments([word.strip('"') for word in words[1:]])
