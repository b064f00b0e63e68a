"""Kubernetes: how a pod stops, who it is, what it may fill, and how requests reach it."""

import shutil
import subprocess

import pytest
import yaml

from zse.deploy.carry_out import write_files
from zse.deploy.order import SecretUse
from zse.deploy.registry import make_plan
from zse.errors import UsageError


@pytest.fixture
def kubernetes(make_order):
    def make(**changes):
        return make_plan("kubernetes", make_order("kubernetes", **changes))

    return make


def pod_of(plan) -> dict:
    document = yaml.safe_load(plan.files["base/deployment.yaml"])
    return document["spec"]["template"]["spec"]


def document(plan, path: str) -> dict:
    return yaml.safe_load(plan.files[path])


def test_a_pod_pauses_before_it_is_told_to_stop_without_a_program_of_the_image(kubernetes):
    pod = pod_of(kubernetes(drain_seconds=20))
    assert pod["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert pod["terminationGracePeriodSeconds"] > 20 + 5
    without = pod_of(kubernetes(extra={"drain-pause-seconds": "0"}))
    assert "lifecycle" not in without["containers"][0]


def test_a_pod_has_the_identity_that_it_is_given(kubernetes):
    assert "serviceAccountName" not in pod_of(kubernetes())
    assert pod_of(kubernetes(extra={"service-account": "llm"}))["serviceAccountName"] == "llm"
    role = "eks.amazonaws.com/role-arn=arn:aws:iam::1:role/zse"
    made = kubernetes(extra={"service-account-annotations": role})
    account = document(made, "base/account.yaml")
    assert account["metadata"]["name"] == pod_of(made)["serviceAccountName"]
    assert account["metadata"]["annotations"] == dict([role.split("=")])
    assert "account.yaml" in document(made, "base/kustomization.yaml")["resources"]


def test_object_storage_without_rights_is_told(kubernetes):
    plan = kubernetes(model="s3://models/qwen.zse", secrets=())
    assert "s3:// needs rights" in plan.to_text()
    extra = {"service-account": "llm"}
    plan = kubernetes(model="s3://models/qwen.zse", secrets=(), extra=extra)
    assert "s3:// needs rights" not in plan.to_text()


@pytest.mark.parametrize(
    ("changes", "disk"),
    [
        ({}, "2Gi"),
        ({"model": "hf://owner/name/qwen.zse"}, "7Gi"),  # 4.1 GiB of weights, and room
        ({"model": "hf://owner/name/qwen.zse", "extra": {"disk-gib": "30"}}, "30Gi"),
    ],
)
def test_what_a_pod_may_fill_is_asked_for_and_limited(changes, disk, kubernetes):
    pod = pod_of(kubernetes(**changes))
    resources = pod["containers"][0]["resources"]
    assert pod["volumes"][0]["emptyDir"] == {"sizeLimit": disk}
    assert resources["requests"]["ephemeral-storage"] == disk
    assert resources["limits"]["ephemeral-storage"] == disk


def test_an_unknown_copy_is_not_limited_but_told(kubernetes):
    plan = kubernetes(model="hf://owner/name/qwen.zse", need=None)
    assert pod_of(plan)["volumes"][0]["emptyDir"] == {}
    assert "--set disk-gib=N" in plan.to_text()


def test_prometheus_finds_the_metrics(kubernetes):
    def annotations(plan):
        template = document(plan, "base/deployment.yaml")["spec"]["template"]
        return template["metadata"].get("annotations")

    plan = kubernetes(port=9000)
    assert annotations(plan)["prometheus.io/port"] == "9000"
    assert annotations(plan)["prometheus.io/path"] == "/metrics"
    assert annotations(kubernetes(extra={"scrape": "none"})) is None
    monitored = kubernetes(extra={"scrape": "pod-monitor"})
    assert document(monitored, "base/monitor.yaml")["kind"] == "PodMonitor"
    assert annotations(monitored) is None


def test_a_drained_node_takes_one_replica_at_a_time(kubernetes):
    assert document(kubernetes(), "base/disruption.yaml")["spec"]["maxUnavailable"] == 1


def test_an_ingress_goes_where_a_sleeping_pod_is_woken(kubernetes):
    plan = kubernetes(
        extra={"host": "llm.example.com", "ingress-class": "nginx"}, env={"ZSE_API_KEYS_FILE": "/k"}
    )

    def backend(overlay):
        rules = document(plan, f"overlays/{overlay}/ingress.yaml")["spec"]["rules"]
        return rules[0]["http"]["paths"][0]["backend"]["service"]

    assert backend("always-on") == {"name": "zse-qwen", "port": {"number": 80}}
    woken = document(plan, "overlays/scale-to-zero/interceptor.yaml")
    assert backend("scale-to-zero")["name"] == woken["metadata"]["name"]
    assert woken["spec"]["externalName"].startswith("keda-add-ons-http-interceptor-proxy.keda")
    route = document(plan, "overlays/scale-to-zero/route.yaml")
    assert "llm.example.com" in route["spec"]["rules"][0]["hosts"]
    assert "whoever reaches llm.example.com" in plan.to_text()


@pytest.mark.parametrize(
    "extra",
    [
        {"ingress-class": "nginx"},
        {"tls-secret": "c", "host": "h"},
        {"gateway": "edge", "host": "h"},  # scale-to-zero: its route cannot reach the interceptor
    ],
)
def test_what_cannot_work_is_refused(extra, kubernetes):
    with pytest.raises(UsageError):
        kubernetes(extra=extra)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", ["scale-to-zero", "always-on"])
def test_kustomize_builds_both_overlays(overlay, kubernetes, tmp_path):
    extra = {"host": "llm.example.com", "ingress-class": "nginx", "scrape": "pod-monitor"}
    write_files(kubernetes(extra=extra, env={"ZSE_API_KEYS_FILE": "/k"}), tmp_path)
    command = ["kubectl", "kustomize", str(tmp_path / "overlays" / overlay)]
    built = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds = {document["kind"] for document in yaml.safe_load_all(built)}
    assert {"Deployment", "Service", "PodDisruptionBudget", "PodMonitor", "Ingress"} <= kinds


MESH = {"form": "mesh", "gpu": "none", "volume": "models", "model": "qwen.zse"}


def test_nodes_of_a_mesh_and_their_front_find_each_other(kubernetes):
    plan = kubernetes(**MESH, extra={"mesh-nodes": "4"})
    nodes = document(plan, "overlays/mesh/nodes.yaml")["spec"]
    service = document(plan, "overlays/mesh/nodes-service.yaml")
    front = document(plan, "overlays/mesh/front.yaml")["spec"]["template"]["spec"]
    (node,), (server,) = nodes["template"]["spec"]["containers"], front["containers"]
    name = service["metadata"]["name"]
    assert nodes["serviceName"] == name
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]  # nodes hold nothing before a front comes
    assert nodes["replicas"] == 4
    assert nodes["template"]["metadata"]["labels"] == service["spec"]["selector"]
    assert server["command"][3:] == [
        *("serve", "--mesh", f"k8s:{name}:7700", "--mesh-nodes", "4", "--mesh-wait", "240")
    ]
    assert "$(POD_IP):7700" in node["command"]
    assert {"POD_IP", "POD_NAME"} <= {each["name"] for each in node["env"]}
    for container in (node, server):
        env = {each["name"]: each for each in container["env"]}
        assert env["ZSE_MODEL"]["value"] == "/models/qwen.zse"
        assert env["ZSE_MESH_SECRET"]["valueFrom"]["secretKeyRef"]["name"] == "zse-qwen-mesh"
    assert "create secret generic zse-qwen-mesh" in plan.to_text()


def test_commands_of_a_mesh_are_commands_of_zse(kubernetes):
    """What the manifests say is parsed by the real command line."""
    from zse.cli import run

    plan = kubernetes(**MESH)
    for path in ("overlays/mesh/nodes.yaml", "overlays/mesh/front.yaml"):
        pod = document(plan, path)["spec"]["template"]["spec"]
        words = pod["containers"][0]["command"][3:]
        assert run([*words, "--no-such-flag"]) == 2
        assert run([*words, "--help"]) == 0


@pytest.mark.parametrize(("gpu", "device"), [("none", "cpu"), ("NVIDIA-L4", "cuda")])
def test_a_node_computes_on_what_it_was_given(gpu, device, kubernetes):
    plan = kubernetes(**MESH | {"gpu": gpu})
    pod = document(plan, "overlays/mesh/nodes.yaml")["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    assert node["command"][-2:] == ["--device", device]
    assert ("nvidia.com/gpu" in node["resources"]["limits"]) == (device == "cuda")


def test_only_nodes_and_the_front_reach_the_port_of_a_mesh(kubernetes):
    plan = kubernetes(**MESH)
    (rule,) = document(plan, "overlays/mesh/nodes-network.yaml")["spec"]["ingress"]
    names = [each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in rule["from"]]
    assert names == ["zse-qwen-nodes", "zse-qwen"]
    assert [port["port"] for port in rule["ports"]] == [7700]


def test_a_mesh_that_has_a_secret_keeps_it_and_one_node_is_none(kubernetes):
    given = SecretUse(variable="ZSE_MESH_SECRET", secret="mine", key="k")
    plan = kubernetes(**MESH, secrets=(given,))
    env = document(plan, "overlays/mesh/front.yaml")["spec"]["template"]["spec"]["containers"][0]
    found = [each for each in env["env"] if each["name"] == "ZSE_MESH_SECRET"]
    assert [each["valueFrom"]["secretKeyRef"] for each in found] == [{"name": "mine", "key": "k"}]
    assert "create secret" not in plan.to_text()
    with pytest.raises(UsageError, match="nobody to take over"):
        kubernetes(**MESH, extra={"mesh-nodes": "1"})


def test_replicas_under_ray_sleep_and_nobody_reaches_rays_dashboard(kubernetes):
    plan = kubernetes(form="ray", max_replicas=4)
    service = document(plan, "overlays/ray/rayservice.yaml")["spec"]
    (app,) = yaml.safe_load(service["serveConfigV2"])["applications"]
    assert app["import_path"] == "ray_app:app"
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (0, 4)
    made = document(plan, "overlays/ray/kustomization.yaml")["configMapGenerator"][0]
    (worker,) = group["template"]["spec"]["containers"]
    volumes = {each["name"]: each for each in group["template"]["spec"]["volumes"]}
    assert volumes["app"]["configMap"]["name"] == made["name"]
    mount = {each["name"]: each["mountPath"] for each in worker["volumeMounts"]}["app"]
    assert {"name": "PYTHONPATH", "value": mount} in worker["env"]
    open_to_all = [
        rule["ports"]
        for rule in document(plan, "overlays/ray/ray-network.yaml")["spec"]["ingress"]
        if "from" not in rule
    ]
    assert open_to_all == [[{"port": 8000, "protocol": "TCP"}]]


def test_an_endpoint_picker_finds_pods_and_reads_their_load(kubernetes):
    extra = {"host": "h", "gateway": "edge", "inference-pool": "picker"}
    plan = kubernetes(form="always-on", extra=extra, env={"ZSE_API_KEYS_FILE": "/k"}, port=9000)
    pool = document(plan, "overlays/always-on/inferencepool.yaml")
    pods = document(plan, "base/deployment.yaml")["spec"]["template"]
    wanted = pool["spec"]["selector"]["matchLabels"].items()
    assert wanted <= pods["metadata"]["labels"].items()
    assert pool["spec"]["targetPorts"] == [{"number": 9000}]
    assert pool["spec"]["endpointPickerRef"]["name"] == "picker"
    env = {each["name"]: each.get("value") for each in pods["spec"]["containers"][0]["env"]}
    assert (env["ZSE_METRICS_NAMES"], env["ZSE_OPEN_METRICS"]) == ("both", "1")
    route = document(plan, "overlays/always-on/poolroute.yaml")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    resources = document(plan, "overlays/always-on/kustomization.yaml")["resources"]
    assert "gatewayroute.yaml" not in resources
    with pytest.raises(UsageError, match="needs a gateway"):
        kubernetes(form="always-on", extra={"inference-pool": "picker"})
