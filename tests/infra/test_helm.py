"""The chart: what it renders is what `zse deploy kubernetes` writes, and what it refuses is the same."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from go_templates import RefusedError, merged, render_chart

from zse.deploy.order import Order, SecretUse
from zse.deploy.registry import make_plan
from zse.models.memory import MemoryEstimate

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "infra" / "helm" / "zse"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
_SPEC = importlib.util.spec_from_file_location(
    "deploy_schemas", ROOT / "tests" / "deploy" / "schemas.py"
)
schemas = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(schemas)

NAME, IMAGE = "zse-qwen", "registry.example.com/acme/zse-qwen:1"
NEED = MemoryEstimate(
    stored_bytes=4_400_000_000,
    weights_bytes=4_400_000_000,
    kv_bytes=500_000_000,
    overhead_bytes=488_000_000,
    quantization="int4",
    context_tokens=4096,
)
MEMORY_MIB = NEED.total_bytes >> 20
KEYS = SecretUse(variable="ZSE_API_KEYS", secret="server-keys", key="keys")
HUB = SecretUse(variable="HF_TOKEN", secret="hub", key="HF_TOKEN")
ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/zse"}
OUTSIDE = {"host": "llm.example.com", "ingress-class": "nginx", "tls-secret": "certificate"}
KEPT = {"keys": {"secret": "server-keys", "key": "keys"}}
INGRESS = {
    "host": "llm.example.com",
    "ingress": {"className": "nginx", "tlsSecret": "certificate"},
}

# What the command is asked for, and the values that mean the same.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a GPU": ({"form": "always-on"}, {}),
    "no GPU": (
        {"form": "always-on", "gpu": "none", "need": None},
        {"gpu": {"enabled": False}},
    ),
    "a GPU by its name": (
        {"form": "always-on", "gpu": "NVIDIA-L4", "min_replicas": 2, "max_replicas": 2},
        {"gpu": {"product": "NVIDIA-L4"}, "replicas": 2},
    ),
    "sleeping": (
        {"max_replicas": 3, "idle_seconds": 60, "concurrency": 4, "startup_seconds": 90},
        {
            "autoscaling": {"enabled": True, "max": 3, "idleSeconds": 60, "concurrency": 4},
            "probes": {"startupSeconds": 90},
        },
    ),
    "sleeping behind an ingress": (
        {"secrets": (KEYS,), "extra": OUTSIDE},
        {"autoscaling": {"enabled": True}, **KEPT, **INGRESS},
    ),
    "awake behind an ingress and a gateway": (
        {"form": "always-on", "secrets": (KEYS,), "extra": {**OUTSIDE, "gateway": "edge/public"}},
        {**KEPT, **INGRESS, "gateway": {"name": "public", "namespace": "edge"}},
    ),
    "a load balancer": (
        {"form": "always-on", "secrets": (KEYS, HUB), "is_public": True},
        {**KEPT, "serviceType": "LoadBalancer", "secrets": [{"variable": "HF_TOKEN", "secret": "hub"}]},
    ),
    "everything else": (
        {
            "form": "always-on",
            "port": 9000,
            "drain_seconds": 3,
            "volume": "models",
            "model": "qwen.zse",
            "registry_secret": "pull",
            "env": {"ZSE_MAX_QUEUE": "64", "QUOTED": "a\"b: {{ .Values }} #\n'"},
            "secrets": (HUB,),
            "extra": {
                "service-account-annotations": "eks.amazonaws.com/role-arn=arn:aws:iam::1:role/zse",
                "pod-labels": "azure.workload.identity/use=true",
                "runtime-class": "nvidia",
                "pull-policy": "Always",
                "scrape": "pod-monitor",
                "drain-pause-seconds": "0",
                "disk-gib": "20",
                "cpu": "3",
                "memory": "6Gi",
                "max-unavailable": "2",
                "namespace": "models",
            },
        },
        {
            "port": 9000,
            "drain": {"seconds": 3, "pauseSeconds": 0},
            "volume": "models",
            "model": "/models/qwen.zse",
            "pullSecret": "pull",
            "env": {"ZSE_MAX_QUEUE": "64", "QUOTED": "a\"b: {{ .Values }} #\n'"},
            "secrets": [{"variable": "HF_TOKEN", "secret": "hub", "key": "HF_TOKEN"}],
            "serviceAccount": {"annotations": ROLE},
            "podLabels": {"azure.workload.identity/use": "true"},
            "runtimeClass": "nvidia",
            "pullPolicy": "Always",
            "scrape": "pod-monitor",
            "resources": {"disk": "20Gi", "cpu": "3", "memory": "6Gi"},
            "maxUnavailable": 2,
        },
    ),
}  # fmt: skip


def values_of(case: str) -> dict[str, Any]:
    return merged({"image": IMAGE, "gpu": {"memoryMiB": MEMORY_MIB}}, CASES[case][1])


def namespace_of(case: str) -> str:
    return CASES[case][0].get("extra", {}).get("namespace", "default")


def rendered(case: str) -> list[dict[str, Any]]:
    return render_chart(CHART, values_of(case), name=NAME, namespace=namespace_of(case))


def planned(case: str) -> list[dict[str, Any]]:
    order = Order(**{"image": IMAGE, "name": NAME, "need": NEED, **CASES[case][0]})
    plan = make_plan("kubernetes", order)
    form = plan.order.form
    found = []
    for path, text in plan.files.items():
        is_part = path.endswith(("replicas.yaml", "kustomization.yaml"))
        if path.startswith(("base/", f"overlays/{form}/")) and not is_part:
            found.append(yaml.safe_load(text))
    return found


def comparable(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return documents by kind and name, without what a chart has to say otherwise."""
    found = {}
    for document in documents:
        labels = document["metadata"].get("labels", {})
        labels.pop("app.kubernetes.io/managed-by", None)
        if document["kind"] == "Deployment":
            pod = document["spec"]["template"]
            (container,) = pod["spec"]["containers"]
            container["env"].sort(key=lambda item: item["name"])
            if any(d["kind"] == "ScaledObject" for d in documents):
                document["spec"].pop("replicas", None)  # KEDA's; the overlay has a patch
            for place, name in ((pod["metadata"], "annotations"), (pod["spec"], "affinity")):
                place.setdefault(name, None)  # a key without a value is no key
        found[document["kind"], document["metadata"]["name"]] = document
    assert len(found) == len(documents)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_chart_renders_what_the_command_writes(case: str) -> None:
    assert comparable(rendered(case)) == comparable(planned(case))


@pytest.mark.parametrize("case", CASES)
def test_what_the_chart_renders_passes_the_validators(case: str) -> None:
    jsonschema.validate(
        merged(yaml.safe_load((CHART / "values.yaml").read_text()), values_of(case)), SCHEMA
    )
    for document in rendered(case):
        if document["kind"] in schemas.BY_KIND:
            jsonschema.validate(document, schemas.BY_KIND[document["kind"]])
        else:
            validate = pytest.importorskip("kubernetes_validate")
            validate.validate(document, validate.latest_version(), strict=True)


REFUSED: dict[str, dict[str, Any]] = {
    "image is not set": {"image": ""},
    "host is not set": {**KEPT, "ingress": {"className": "nginx"}},
    "could ask": {"serviceType": "LoadBalancer"},
    "whoever reaches it": INGRESS,
    "cannot wake": {**KEPT, "gateway": {"name": "edge"}, "autoscaling": {"enabled": True}},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_work_or_lets_anyone_in_is_refused(why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        render_chart(CHART, {"image": IMAGE, **REFUSED[why]}, name=NAME)


def test_anyone_is_let_in_only_when_that_is_said() -> None:
    documents = render_chart(CHART, {"image": IMAGE, "public": True, **INGRESS}, name=NAME)
    assert {"Ingress", "Deployment"} <= {document["kind"] for document in documents}


@pytest.mark.parametrize(
    "given",
    [
        {"imgae": "a"},
        {"gpu": {"enabled": "yes"}},
        {"port": 70000},
        {"env": {"ZSE_PUBLIC": "1"}},
        {"env": {"A B": "1"}},
        {"env": {"A": 1}},
        {"secrets": [{"variable": "ZSE_MODEL", "secret": "s"}]},
        {"podLabels": {"app.kubernetes.io/name": "other"}},
        {"resources": {"memory": "lots"}},
        {"scrape": "sometimes"},
    ],
)
def test_values_that_mean_nothing_are_refused_by_the_schema(given: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(given, SCHEMA)


def test_every_value_is_used_by_a_template() -> None:
    text = "".join(path.read_text() for path in CHART.glob("templates/*"))
    for name, default in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        paths = [f"{name}.{key}" for key in default] if isinstance(default, dict) else []
        for path in paths or [name]:
            assert f".Values.{path}" in text, path


def test_a_chart_that_is_not_what_the_script_makes_is_found(tmp_path: Path) -> None:
    import runpy
    import sys

    made = runpy.run_path(str(ROOT / "scripts" / "helm.py"))
    there = {str(p.relative_to(CHART)): p.read_text() for p in CHART.rglob("*") if p.is_file()}
    assert made["files"]() == there, "run scripts/helm.py"
    chart = tmp_path / "zse"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "service.yaml").write_text("kind: Service\n")
    made["main"].__globals__["CHART"] = chart
    arguments, sys.argv = sys.argv, ["helm.py", "--check"]
    try:
        assert made["main"]() == 1
        sys.argv = ["helm.py"]
        assert made["main"]() == 0
    finally:
        sys.argv = arguments
    assert (chart / "templates" / "service.yaml").read_text() == there["templates/service.yaml"]


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("case", CASES)
def test_helm_itself_renders_the_same(case: str, tmp_path: Path) -> None:
    (tmp_path / "values.json").write_text(json.dumps(values_of(case)))
    command = ["helm", "template", NAME, str(CHART), "--namespace", namespace_of(case),
               "--values", str(tmp_path / "values.json")]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert comparable([d for d in yaml.safe_load_all(done.stdout) if d]) == comparable(
        rendered(case)
    )
    subprocess.run([*command[:1], "lint", "--strict", *command[3:]], check=True)
