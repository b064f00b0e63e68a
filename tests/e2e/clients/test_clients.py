"""The libraries that people call servers with find what they were written for.

Each program below ``programs`` is what a user of one library would write. They run by night, in an
environment of their own that ``scripts/clients`` makes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from started_server import StartedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scored_by_transformers import Reference

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]
HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAMS = sorted(path.name for path in (HERE / "programs").glob("use_*.py"))
ADMIN_KEY = "zse-an-admin-key-that-only-this-test-knows-0000"
ROUTES_LEFT_OUT = ("/api/models/unload", "/sleep")
"""What takes the model away that the other routes are asked with."""
TINY = ("-m", "zse.serve", "tiny", "--device", "cpu", "--port", "0")
CHECKS = (
    "not_a_server_error,response_schema_conformance,content_type_conformance,"
    "status_code_conformance"
)


@pytest.fixture(scope="module")
def clients() -> Path:
    done = subprocess.run([ROOT / "scripts/clients"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def dictated() -> Iterator[str]:
    with serving(str(HERE / "dictated_server.py")) as url:
        yield url


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[str]:
    server = StartedServer([sys.executable, *command], environment)
    try:
        yield server.url
    finally:
        server.stop()


def run(command: list[str | Path], **where: object) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, **where
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_library_of_python_works(clients: Path, dictated: str, program: str) -> None:
    run([clients / "venv/bin/python", HERE / "programs" / program, f"{dictated}/v1"])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_library_for_node_works(clients: Path, dictated: str) -> None:
    program = shutil.copy(HERE / "programs/use_openai_node.mjs", clients / "node")
    run(["node", program, f"{dictated}/v1"], cwd=clients / "node")


def test_lm_eval_measures_the_built_in_model(clients: Path, tmp_path: Path) -> None:
    with serving(*TINY, ZSE_HOME=str(tmp_path)) as url:
        program = HERE / "programs/evaluate_with_lm_eval.py"
        run([clients / "venv/bin/python", program, f"{url}/v1", "tiny"], cwd=tmp_path)


def test_the_command_of_lm_eval_measures_a_task_of_ones_own(clients: Path, tmp_path: Path) -> None:
    score, _ = measured(clients, tmp_path, "capitals", "local-completions", "completions")
    assert score["acc,none"] == 1


@pytest.fixture(scope="module")
def reference() -> Reference:
    from scored_by_transformers import Reference

    return Reference()


def test_lm_eval_finds_the_score_that_transformers_gives(
    clients: Path, reference: Reference, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.zse"  # in 16 bits, so that rounding hides nothing
    run([sys.executable, "-m", "zse", "convert", "tiny", "--quant", "bf16", "-o", file])
    score, samples = measured(
        clients, tmp_path, "cities", "local-completions", "completions", str(file)
    )
    num_right = 0
    for sample in samples:
        question = sample["doc"]
        found = [float(pair[0]) for pair in sample["filtered_resps"]]
        expected = reference.log_probabilities(question["question"], question["choices"])
        assert found == pytest.approx(expected, rel=0.02, abs=0.1)
        num_right += expected.index(max(expected)) == question["answer"]
    assert len(samples) == 32
    assert score["acc,none"] == pytest.approx(num_right / len(samples), abs=1 / len(samples))
    assert 0 < num_right < len(samples)


def test_lm_eval_is_answered_in_a_chat_as_transformers_answers(
    clients: Path, reference: Reference, tmp_path: Path
) -> None:
    score, samples = measured(
        clients, tmp_path, "asked", "local-chat-completions", "chat/completions"
    )
    for sample in samples:
        question = sample["doc"]["question"]
        assert sample["filtered_resps"] == [reference.answer(question, 24)], question
    assert len(samples) == 12
    assert score["exact_match,none"] == 1


def measured(
    clients: Path, folder: Path, task: str, kind: str, route: str, model: str = "tiny"
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the score of a task by the command of lm-eval, and each of its samples."""
    started = [model if word == "tiny" else word for word in TINY]
    with serving(*started, ZSE_HOME=str(folder)) as url:
        arguments = f"model=tiny,base_url={url}/v1/{route},num_concurrent=2"
        template = ["--apply_chat_template"] if "chat" in kind else []
        run(
            [
                clients / "venv/bin/lm_eval", "run", "--model", kind, "--tasks", task,
                "--include_path", ".", "--model_args", arguments, "--log_samples",
                "--output_path", folder / "found", *template,
            ],
            cwd=HERE / "tasks",
        )  # fmt: skip
    (results,) = (folder / "found").rglob("results_*.json")
    (samples,) = (folder / "found").rglob(f"samples_{task}_*.jsonl")
    score = json.loads(results.read_text())["results"][task]
    return score, [json.loads(line) for line in samples.read_text().splitlines()]


def test_every_route_does_what_its_description_says(clients: Path, tmp_path: Path) -> None:
    environment = {"ZSE_API_KEYS": f"admin:{ADMIN_KEY}", "ZSE_HOME": str(tmp_path)}
    with serving(*TINY, **environment) as url:
        leave_out = [word for path in ROUTES_LEFT_OUT for word in ("--exclude-path", path)]
        run(
            [
                clients / "venv/bin/schemathesis", "run", f"{url}/openapi.json",
                "--header", f"Authorization: Bearer {ADMIN_KEY}", "--max-examples", "25",
                "--checks", CHECKS, *leave_out,
            ],
            cwd=tmp_path,
        )  # fmt: skip
