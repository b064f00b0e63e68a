"""Every file of every target and form, read by its own language and checked against a schema."""

import ast
import importlib.util
import json
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from zse.deploy.order import SecretUse
from zse.deploy.registry import TARGETS, make_plan

_SPEC = importlib.util.spec_from_file_location("schemas", Path(__file__).with_name("schemas.py"))
schemas = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(schemas)

# test_terraform.py checks root modules against the modules that they call.
FORMS = [
    (name, form)
    for name, target in TARGETS.items()
    for form in target.forms or ("",)
    if name != "terraform"
]
VARIANTS = {
    "plain": {},
    "private registry": {"registry_secret": "pull"},
    "always on": {"min_replicas": 2},
    "one replica": {"max_replicas": 1},
}


def check_file(target: str, path: str, text: str) -> None:
    """Check one rendered file."""
    if path.endswith(".json"):
        is_vast = target == "vast" and path == "template.json"
        schema = schemas.VAST_TEMPLATE if is_vast else schemas.BY_PATH[path]
        jsonschema.validate(json.loads(text), schema)
    elif target == "kubernetes" and path.endswith(".yaml"):
        check_kubernetes(path, yaml.safe_load(text))
    elif path == "compose.yaml":
        check_compose(text)
    elif path.endswith(".yaml"):
        jsonschema.validate(yaml.safe_load(text), schemas.BY_PATH[path])
    elif path.endswith(".py"):
        ast.parse(text)
    elif path.endswith(".sh"):
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    elif path == "Dockerfile":
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert {line.split()[0] for line in lines} <= {"FROM", "RUN", "COPY", "ENV", "CMD"}
        assert lines[0].startswith("FROM ")


def check_kubernetes(path: str, document: dict) -> None:
    kind = document["kind"]
    if kind == "RayService":
        check_pods_of_ray(document["spec"]["rayClusterConfig"])
    if kind in schemas.BY_KIND:
        jsonschema.validate(document, schemas.BY_KIND[kind])
    elif not path.endswith("replicas.yaml"):  # a patch is not a whole object
        validate = pytest.importorskip("kubernetes_validate")
        validate.validate(document, validate.latest_version(), strict=True)


def check_pods_of_ray(cluster: dict) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        pod = {**pod, "metadata": {"name": "x", **pod["metadata"]}}
        validate.validate(pod, validate.latest_version(), strict=True)


def check_compose(text: str) -> None:
    compose_spec = pytest.importorskip("compose_spec")
    compose = compose_spec.PyCompose.from_yaml(text)
    compose.validate()
    compose.to_spec()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("target", "form"), FORMS)
def test_every_file_passes_its_validator(target, form, variant, make_order):
    plan = make_plan(target, make_order(target, form=form, **VARIANTS[variant]))
    assert plan.files
    for path, text in plan.files.items():
        assert "@{" not in text, path
        check_file(target, path, text)


@pytest.mark.parametrize(("target", "form"), FORMS)
def test_an_image_is_named_as_it_was_given(target, form, make_order):
    order = make_order(target, form=form)
    plan = make_plan(target, order)
    assert any(order.image in text for text in plan.files.values())


@pytest.mark.parametrize(("target", "form"), FORMS)
def test_a_secret_is_a_reference_everywhere(target, form, make_order):
    plan = make_plan(target, make_order(target, form=form))
    said = "\n".join([*plan.files.values(), *plan.notes, *map(shlex.join, plan.commands)])
    assert "HF_TOKEN" in said
    assert plan.to_json()["secrets"]["HF_TOKEN"] == "hub:HF_TOKEN"


KEYS = SecretUse(variable="ZSE_API_KEYS", secret="server-keys", key="keys")
EVERYTHING = {
    "host": "llm.example.com",
    "ingress-class": "nginx",
    "tls-secret": "certificate",
    "service-account-annotations": "eks.amazonaws.com/role-arn=arn:aws:iam::1:role/zse",
    "pod-labels": "azure.workload.identity/use=true",
    "runtime-class": "nvidia",
    "pull-policy": "Always",
    "scrape": "pod-monitor",
    "disk-gib": "20",
}


@pytest.mark.parametrize("form", TARGETS["kubernetes"].forms)
def test_every_setting_of_kubernetes_passes_the_validators(form, make_order):
    gateway = {"gateway": "edge/public", "inference-pool": "zse-picker"}
    extra = {**EVERYTHING, **(gateway if form == "always-on" else {})}
    plan = make_plan(
        "kubernetes", make_order("kubernetes", form=form, extra=extra, secrets=(KEYS,))
    )
    for path, text in plan.files.items():
        check_file("kubernetes", path, text)


def test_kustomize_overlays_name_files_that_are_there(make_order):
    files = make_plan("kubernetes", make_order("kubernetes")).files
    for path, text in files.items():
        document = yaml.safe_load(text)
        if document.get("kind") != "Kustomization":
            continue
        folder = Path(path).parent
        named = [*document["resources"], *(patch["path"] for patch in document.get("patches", []))]
        for name in named:
            joined = Path("/", folder, name).resolve().relative_to("/")
            assert str(joined) in files or str(joined / "kustomization.yaml") in files, name


def test_probes_ask_what_the_server_answers(make_order):
    text = make_plan("kubernetes", make_order("kubernetes")).files["base/deployment.yaml"]
    container = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]
    probes = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
    assert probes == {
        "startupProbe": "/health/ready",
        "readinessProbe": "/health/ready",
        "livenessProbe": "/health/live",
    }
    assert container["startupProbe"]["failureThreshold"] == 240


@pytest.mark.parametrize("target", ["kubernetes", "compose"])
def test_the_platform_waits_longer_than_the_server_drains(target, make_order):
    files = make_plan(target, make_order(target, drain_seconds=20)).files
    if target == "kubernetes":
        spec = yaml.safe_load(files["base/deployment.yaml"])["spec"]["template"]["spec"]
        patience = spec["terminationGracePeriodSeconds"]
        env = {item["name"]: item.get("value") for item in spec["containers"][0]["env"]}
    else:
        service = yaml.safe_load(files["compose.yaml"])["services"]["server"]
        patience = int(service["stop_grace_period"].rstrip("s"))
        env = service["environment"]
    assert patience > int(env["ZSE_DRAIN_SECONDS"])


def test_a_gpu_node_is_chosen_by_memory_or_by_name(make_order):
    def rules(**changes):
        order = make_order("kubernetes", **changes)
        text = make_plan("kubernetes", order).files["base/deployment.yaml"]
        spec = yaml.safe_load(text)["spec"]["template"]["spec"]
        return json.dumps(spec.get("affinity", {})), spec["containers"][0]["resources"]

    by_memory, resources = rules()
    assert "nvidia.com/gpu.memory" in by_memory
    assert resources["limits"]["nvidia.com/gpu"] == 1
    assert "NVIDIA-L4" in rules(gpu="NVIDIA-L4")[0]
    nothing, resources = rules(gpu="none")
    assert nothing == "{}"
    assert "nvidia.com/gpu" not in resources["limits"]


def test_a_volume_is_mounted_for_reading_where_the_model_is_looked_for(make_order):
    order = make_order("kubernetes", volume="models", model="qwen.zse")
    spec = yaml.safe_load(make_plan("kubernetes", order).files["base/deployment.yaml"])
    pod = spec["spec"]["template"]["spec"]
    mount = pod["containers"][0]["volumeMounts"][1]
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}
    env = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    assert env["ZSE_MODEL"] == "/models/qwen.zse"
    compose = yaml.safe_load(
        make_plan("compose", make_order("compose", volume="m")).files["compose.yaml"]
    )
    assert compose["services"]["server"]["volumes"] == ["m:/models:ro"]
    assert compose["volumes"] == {"m": {"external": True}}
