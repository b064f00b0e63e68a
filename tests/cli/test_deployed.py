"""``zse deploy TARGET status|logs|destroy``: names from the folder, work by the platform's tool."""

import json

import pytest
import typer

from zse.cli import run
from zse.deploy import runpod_api
from zse.deploy.registry import TARGETS

pytestmark = pytest.mark.usefixtures("unread_images")
IMAGE = ["--image", "ghcr.io/acme/qwen:1"]
PUBLIC = ["--public", "--secret", "ZSE_API_KEYS=server-keys"]
TOOLS = ("modal", "docker", "kubectl", "terraform", "gcloud", "railway", "render", "vastai")
GOOGLE = ["--region", "us-central1", "--set", "project=acme"]


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Stand-ins for the platforms' tools; returns what they were called with, one list a call."""
    folder = tmp_path / "tools"
    folder.mkdir()
    log = tmp_path / "calls"
    for name in TOOLS:
        tool = folder / name
        tool.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" END >>{log}\n')
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)

    def calls() -> list[list[str]]:
        words = log.read_text().split("\n") if log.exists() else []
        text = "\n".join(words)
        return [call.strip("\n").split("\n") for call in text.split("END\n") if call.strip()]

    return calls


def deploy(target: str, *more: str) -> None:
    assert run(["deploy", target, "tiny", *IMAGE, *more]) == 0


@pytest.mark.parametrize(
    ("target", "more", "verb", "expected"),
    [
        ("modal", [], "status", "modal app info qwen"),
        ("modal", [], "logs", "modal app logs qwen --tail 200"),
        ("modal", [], "destroy", "modal app stop qwen --yes"),
        ("compose", [], "status", "docker compose --project-name qwen ps"),
        ("compose", [], "destroy", "docker compose --project-name qwen down"),
        (
            "kubernetes",
            ["--set", "namespace=llm"],
            "logs",
            "kubectl logs --namespace llm --selector app.kubernetes.io/name=qwen --prefix --tail 200",
        ),
        (
            "kubernetes",
            ["--form", "always-on"],
            "destroy",
            "kubectl delete -k overlays/always-on --ignore-not-found",
        ),
        ("terraform", GOOGLE, "status", "terraform output"),
        (
            "terraform",
            GOOGLE,
            "logs",
            "gcloud run services logs read qwen --region us-central1 --project acme",
        ),
        ("terraform", GOOGLE, "destroy", "terraform destroy -auto-approve"),
        ("railway", [], "destroy", "railway down --service qwen --yes"),
        ("render", [], "status", "render services --output text"),
        ("vast", PUBLIC, "status", "vastai show instances"),
    ],
)
def test_the_platforms_tool_is_called_with_the_names_of_the_folder(
    target, more, verb, expected, called, capsys
):
    deploy(target, *more)
    sure = ["--yes"] if verb == "destroy" else []
    assert run(["deploy", target, verb, *sure]) == 0
    assert called() == [expected.split(" ")]


def test_logs_can_be_followed(called):
    deploy("modal")
    assert run(["deploy", "modal", "logs", "--follow"]) == 0
    assert called() == [["modal", "app", "logs", "qwen", "--follow"]]


def test_nothing_is_destroyed_without_a_yes(called, monkeypatch, capsys):
    deploy("modal")
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: (_ for _ in ()).throw(typer.Abort()))
    assert run(["deploy", "modal", "destroy"]) == 130
    assert called() == []
    said = capsys.readouterr().err
    assert "volumes and secrets" in said
    assert "what runs in qwen-modal: modal app stop qwen --yes" in said


@pytest.mark.parametrize("target", ["runpod", "vast", "render"])
def test_a_platform_that_goes_by_identifiers_asks_for_one(target, called, capsys):
    deploy(target, *(PUBLIC if target == "vast" else []))
    verb = "status" if target == "runpod" else "logs"
    assert run(["deploy", target, verb]) == 3
    assert "--id" in capsys.readouterr().err


def test_what_vast_answered_names_the_instance(called, tmp_path):
    deploy("vast", *PUBLIC)
    answer = tmp_path / "qwen-vast" / "answer.json"
    answer.write_text('{"success": true, "new_contract": 7835610}')
    assert run(["deploy", "vast", "destroy", "--yes"]) == 0
    assert called() == [["vastai", "destroy", "instance", "7835610"]]


def test_the_machine_that_vast_rents_is_remembered(called, tmp_path):
    tool = tmp_path / "tools" / "vastai"
    answers = "search) echo '[{\"id\": 5}]' ;; create) echo '{\"new_contract\": 77}' ;;"
    tool.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\ncase "$1" in {answers} esac\n')
    deploy("vast", *PUBLIC, "--apply")
    assert run(["deploy", "vast", "logs"]) == 0
    search, create, logs = (tmp_path / "said").read_text().splitlines()
    assert search.startswith("search offers gpu_name=")
    assert create.startswith("create instance 5 --raw --image ghcr.io/acme/qwen:1")
    assert logs == "logs 77 --tail 200"


def test_runpods_endpoint_is_found_by_the_answer_that_made_it(called, tmp_path, monkeypatch):
    sent = []
    answers = iter([{"id": "e1x", "env": {"A": "b"}}, {"workers": 0}, None])
    monkeypatch.setattr(runpod_api, "send", lambda *call: sent.append(call) or next(answers))
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_canary")
    deploy("runpod", "--apply")
    assert json.loads((tmp_path / "qwen-runpod" / "answer.json").read_text()) == {"id": "e1x"}
    assert run(["deploy", "runpod", "status"]) == 0
    assert run(["deploy", "runpod", "destroy", "--yes"]) == 0
    made, *later = [(request.method, request.url) for request, _ in sent]
    assert later == [("GET", f"{made[1]}/e1x"), ("DELETE", f"{made[1]}/e1x")]


@pytest.mark.parametrize(("target", "verb"), [("runpod", "logs"), ("render", "destroy")])
def test_what_no_tool_does_says_where_it_is_done(target, verb, called, capsys):
    deploy(target)
    assert run(["deploy", target, verb, "--yes"]) == 12
    assert "has no way" in capsys.readouterr().err
    assert called() == []


@pytest.mark.parametrize(
    "change",
    [
        {"name": "--env=prod"},
        {"name": "a b"},
        {"name": "../../etc"},
        {"name": ["qwen"]},
        {"form": "-k"},
        {"details": {"namespace": "--kubeconfig=/tmp/x"}},
        {"details": "x"},
    ],
)
def test_a_record_that_could_be_an_option_or_a_path_is_refused(change, called, tmp_path, capsys):
    deploy("kubernetes")
    record = tmp_path / "qwen-kubernetes" / "zse-deploy.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
    assert run(["deploy", "kubernetes", "status"]) == 12
    assert called() == []


@pytest.mark.parametrize("identifier", ["../pods", "-x", "a/b", "a?b"])
def test_an_identifier_is_no_part_of_another_address(identifier, called, capsys):
    deploy("runpod")
    assert run(["deploy", "runpod", "status", "--id", identifier]) == 12


def test_the_folder_is_found_or_asked_for(called, tmp_path, capsys):
    assert run(["deploy", "modal", "status"]) == 3
    deploy("modal")
    deploy("modal", "--name", "other")
    assert run(["deploy", "modal", "status"]) == 2
    assert "other-modal, qwen-modal" in capsys.readouterr().err
    assert run(["deploy", "modal", "status", "--output", "other-modal"]) == 0
    assert called() == [["modal", "app", "info", "other"]]
    assert run(["deploy", "compose", "status", "--output", "other-modal"]) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_verb_has_a_help_of_its_own(target, capsys):
    assert run(["deploy", target, "destroy", "--help"]) == 0
    assert "--yes" in capsys.readouterr().out


def test_a_verb_in_the_place_of_a_model_is_not_taken_for_one(called, capsys):
    assert run(["deploy", *IMAGE, "modal", "status", "--dry-run"]) == 2
    assert "zse deploy modal status" in capsys.readouterr().err
