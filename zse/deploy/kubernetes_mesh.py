"""Several machines on Kubernetes: one model over nodes of a mesh, or replicas as actors of Ray."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.deploy.kubernetes_pod import GPU
from zse.deploy.order import NO_GPU
from zse.deploy.templates import render
from zse.errors import UsageError
from zse.units import MIB

if TYPE_CHECKING:
    from zse.deploy.order import Order

MESH_FILES = (
    *("nodes-service.yaml", "nodes.yaml", "nodes-disruption.yaml", "nodes-network.yaml"),
    "front.yaml",
)
RAY_FILES = ("rayservice.yaml", "ray-network.yaml")
MESH_PORT = 7700
MESH_SECRET = "ZSE_MESH_SECRET"
RAY_VERSION = "2.60.0"
"""Of the operator's probes and of the image; both must be the same."""
_PYTHON = ("python3", "-m", "zse")
_LEAST_NODES = 2
_NODE_MEMORY_MIB = 4096
"""Asked for when the model's size is not known."""


def secret_name(order: Order) -> str:
    """Return the secret that holds what all nodes of a mesh know."""
    given = [use.secret for use in order.secrets if use.variable == MESH_SECRET]
    return given[0] if given else f"{order.name}-mesh"


def how_to_begin(order: Order) -> str:
    """Return what makes the mesh's secret, where the order names none."""
    if any(use.variable == MESH_SECRET for use in order.secrets):
        return ""
    return (
        f"kubectl create secret generic {order.name}-mesh "
        f"--from-literal={MESH_SECRET}=$(openssl rand -hex 32)"
    )


def mesh_files(order: Order, given: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    """Return nodes, what lets them be reached, and the front.

    Raises:
        UsageError: One node alone is no mesh.
    """
    num_nodes = given["mesh-nodes"]
    if num_nodes < _LEAST_NODES:
        raise UsageError(
            f"a mesh of {num_nodes} nodes has nobody to take over",
            hint="Give --set mesh-nodes=2 or more, or leave --mesh out.",
        )
    nodes = f"{order.name}-nodes"
    secret = {"secretKeyRef": {"name": secret_name(order), "key": _secret_key(order)}}
    env = [each for each in values["env"] if each["name"] != MESH_SECRET]
    env.append({"name": MESH_SECRET, "valueFrom": secret})
    local = {
        **values,
        "nodes_name": nodes,
        "num_nodes": num_nodes,
        "node_command": [
            *(*_PYTHON, "mesh", "start", "--no-discovery"),
            *("--listen", f"0.0.0.0:{MESH_PORT}", "--advertise", f"$(POD_IP):{MESH_PORT}"),
            *("--name", "$(POD_NAME)", "--device", "cuda" if order.has_gpu else "cpu"),
        ],
        # A variable that a command names must come before those that might name it.
        "node_env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *env,
        ],
        "front_command": [
            *(*_PYTHON, "serve", "--mesh", f"k8s:{nodes}:{MESH_PORT}"),
            *("--mesh-nodes", str(num_nodes), "--mesh-wait", str(order.startup_seconds)),
        ],
        "front_env": env,
        "node_resources": _node_resources(order, num_nodes),
        "front_resources": {
            "requests": {"cpu": "2", "memory": "2Gi"},
            "limits": {"memory": "4Gi"},
        },
        "resource_names": list(MESH_FILES),
    }
    return _rendered("mesh", ("kustomization.yaml", *MESH_FILES), local)


def ray_files(order: Order, given: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    """Return a RayService whose actors are replicas, and the application that they run."""
    app_name = f"{order.name}-app"
    folder = "/opt/zse-ray"
    app = {"name": order.name, "route_prefix": "/", "import_path": "ray_app:app"}
    mount = {"name": "app", "mountPath": folder, "readOnly": True}
    local = {
        **values,
        "app_name": app_name,
        "serve_config": json.dumps({"applications": [app]}),
        "ray_version": RAY_VERSION,
        "operator_namespace": given["ray-operator-namespace"],
        "ray_env": [
            {"name": "PYTHONPATH", "value": folder},
            # Else a request to a sleeping replica is noticed after as long as ten seconds.
            {"name": "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "value": "0.5"},
            *values["env"],
        ],
        "ray_mounts": [*values["mounts"], mount],
        "ray_volumes": [*values["volumes"], {"name": "app", "configMap": {"name": app_name}}],
        "front_resources": {
            "requests": {"cpu": "1", "memory": "4Gi"},
            "limits": {"memory": "4Gi"},
        },
        "num_gpus": 0 if order.gpu == NO_GPU else 1,
        "resource_names": list(RAY_FILES),
    }
    return _rendered("ray", ("kustomization.yaml", *RAY_FILES, "ray_app.py"), local)


def _rendered(form: str, names: tuple[str, ...], values: dict[str, Any]) -> dict[str, str]:
    return {
        f"overlays/{form}/{name}": render(f"kubernetes/{form}/{name}", values) for name in names
    }


def _secret_key(order: Order) -> str:
    keys = [use.key for use in order.secrets if use.variable == MESH_SECRET]
    return keys[0] if keys else MESH_SECRET


def _node_resources(order: Order, num_nodes: int) -> dict[str, Any]:
    """Return what a node asks for: its stage, and the one that it stands by for."""
    memory_mib = _NODE_MEMORY_MIB
    if order.need is not None:
        memory_mib = max(1024, order.need.total_bytes // MIB * 2 * 5 // (4 * num_nodes))
    gpu = {GPU: 1} if order.has_gpu else {}
    memory = f"{memory_mib}Mi"
    return {"requests": {"cpu": "4", "memory": memory}, "limits": {"memory": memory, **gpu}}


def mesh_notes(order: Order) -> tuple[str, ...]:
    """Return what is to be known of a mesh before it is made."""
    where = "--volume CLAIM, readable by many" if not order.is_fetched else "each node reads it"
    return (
        "the image needs the extra zse-toolkit[mesh], and no entry point of its own",
        f"every node needs the model ({where})",
    )


def ray_notes() -> tuple[str, ...]:
    """Return what is to be known of replicas under Ray before they are made."""
    return (
        f"the image is one of Ray {RAY_VERSION} with the extra zse-toolkit[mesh-ray]",
        "KubeRay's operator must be in the cluster; its dashboard takes code from whoever reaches "
        "it, so ray-network.yaml lets only the operator",
    )
