"""``zse deploy``: the plan first, files next, nothing created without ``--apply``."""

import json

import pytest

from zse.cli import run
from zse.deploy import runpod_api

pytestmark = pytest.mark.usefixtures("unread_images")
IMAGE = ["--image", "ghcr.io/acme/qwen:1"]


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["deploy", "modal", "tiny", *IMAGE, "--dry-run"]) == 0
    text = capsys.readouterr().out
    for words in ("modal (server): qwen", "L4: NVIDIA L4", "$0.80/h", "modal deploy app.py"):
        assert words in text
    assert list(tmp_path.iterdir()) == []


def test_json_is_for_scripts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--dry-run", "--json", "--secret", "HF_TOKEN=hub", "--max", "3"]
    assert run(["deploy", "runpod", "tiny", *IMAGE, *flags]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["machine"] == "AMPERE_16"
    assert plan["architectures"] == ["sm_86", "sm_89"]
    assert plan["scales_to_zero"] is True
    assert plan["secrets"] == {"HF_TOKEN": "hub:HF_TOKEN"}
    assert plan["max_replicas"] == 3
    assert plan["needed_bytes"] > 0


def test_files_go_to_a_folder_named_for_the_deployment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["deploy", "compose", "tiny", *IMAGE]) == 0
    assert (tmp_path / "qwen-compose" / "compose.yaml").exists()
    assert "nothing was created yet" in capsys.readouterr().err


def test_apply_on_runpod_sends_the_request_with_the_key(tmp_path, monkeypatch, capsys):
    sent = []
    monkeypatch.setattr(runpod_api, "send", lambda *call: sent.append(call) or {"id": "e1"})
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_canary")
    flags = ["--output", str(tmp_path), "--apply"]
    assert run(["deploy", "runpod", "tiny", *IMAGE, *flags]) == 0
    ((request, key),) = sent
    assert (request.method, key) == ("POST", "rpa_canary")
    shown = capsys.readouterr()
    assert '"id": "e1"' in shown.out
    assert "rpa_canary" not in shown.out + shown.err
    assert all("rpa_canary" not in p.read_text() for p in tmp_path.rglob("*") if p.is_file())


def test_an_endpoint_whose_image_must_be_built_first_is_not_created(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runpod_api, "send", lambda *call: pytest.fail(f"was sent: {call}"))
    flags = ["--form", "queue", "--output", str(tmp_path / "out"), "--apply"]
    assert run(["deploy", "runpod", "tiny", *IMAGE, *flags]) == 2
    assert "--set worker-image=REF" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["heroku", *IMAGE], 2),
        (["modal"], 2),
        (["modal", *IMAGE], 2),  # no size and no GPU
        (["modal", "absent.zse", *IMAGE], 3),
        (["modal", "tiny", *IMAGE, "--memory-gib", "400"], 10),
        (["modal", "tiny", "--image", "a b"], 2),
        (["modal", "tiny", *IMAGE, "--env", "novalue"], 2),
        (["modal", "tiny", *IMAGE, "--min", "-1"], 2),
    ],
)
def test_mistakes_have_their_exit_codes(arguments, code, capsys):
    assert run(["deploy", *arguments, "--dry-run"]) == code
    assert capsys.readouterr().err
