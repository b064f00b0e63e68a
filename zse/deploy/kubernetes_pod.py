"""What stands in a pod of Kubernetes: variables, resources, node, volumes, and how it stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.order import MODELS_FOLDER
from zse.deploy.templates import OMIT
from zse.units import GIB, MIB

if TYPE_CHECKING:
    from zse.deploy.order import Order

GPU = "nvidia.com/gpu"
_SCRATCH_GIB = 2
"""Of a server that fetches nothing: captured logs, temporary files."""
_CPU_MEMORY_MIB = 4096
"""Asked for when the model's size is not known."""


def pod_values(order: Order, given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the pod's part of the Deployment."""
    pause_seconds = given["drain-pause-seconds"]
    disk = disk_of(order, given)
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(order.port),
    }
    return {
        "pod_labels": {**given.get("pod-labels", {}), "app.kubernetes.io/name": order.name},
        "pod_annotations": scraped if given["scrape"] == "annotations" else OMIT,
        "service_account": service_account(order, given) or OMIT,
        "runtime_class": given.get("runtime-class", OMIT),
        "pull_policy": given["pull-policy"],
        "pull_secrets": [{"name": order.registry_secret}] if order.registry_secret else OMIT,
        # The kubelet counts the pause as part of the patience.
        "grace_seconds": order.drain_seconds + 10 + pause_seconds,
        "lifecycle": {"preStop": {"sleep": {"seconds": pause_seconds}}} if pause_seconds else OMIT,
        "env": _environment(order, is_picked="inference-pool" in given),
        "resources": _resources(order, given, disk),
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        if order.has_gpu
        else OMIT,
        "affinity": _affinity(order) if order.has_gpu else OMIT,
        **_volumes(order, disk),
    }


def service_account(order: Order, given: dict[str, Any]) -> str:
    """Return the pod's service account; empty for the namespace's default."""
    made = order.name if "service-account-annotations" in given else ""
    name: str = given.get("service-account", made)
    return name


def disk_of(order: Order, given: dict[str, Any]) -> str | None:
    """Return what a replica may write to the node's disk; None when that is not known."""
    if "disk-gib" in given:
        return f"{given['disk-gib']}Gi"
    if not order.is_fetched:
        return f"{_SCRATCH_GIB}Gi"
    if order.need is None:
        return None
    return f"{-(-order.need.stored_bytes * 21 // (20 * GIB)) + _SCRATCH_GIB}Gi"


def _environment(order: Order, *, is_picked: bool) -> list[dict[str, Any]]:
    """Return the variables; an endpoint picker reads vLLM's names, and shows no key."""
    read = {"ZSE_METRICS_NAMES": "both", "ZSE_OPEN_METRICS": "1"} if is_picked else {}
    own = {"ZSE_HOST": "0.0.0.0", "ZSE_CACHE_DIR": "/tmp/zse", **read}
    values = {**own, **order.environment()}
    plain: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in values.items()]
    return [
        *plain,
        *(
            {
                "name": use.variable,
                "valueFrom": {"secretKeyRef": {"name": use.secret, "key": use.key}},
            }
            for use in order.secrets
        ),
    ]


def _resources(order: Order, given: dict[str, Any], disk: str | None) -> dict[str, Any]:
    if order.has_gpu:
        # The weights go through a small ring: host memory does not grow with the model.
        least, most, cpu, gpu = "2Gi", "8Gi", "2", {GPU: 1}
    else:
        need_mib = order.need.total_bytes // MIB if order.need else _CPU_MEMORY_MIB
        least = most = f"{max(512, need_mib * 5 // 4)}Mi"
        cpu, gpu = "4", {}
    room = {"ephemeral-storage": disk} if disk else {}
    asked = {"cpu": given.get("cpu", cpu), "memory": given.get("memory", least), **room}
    return {"requests": asked, "limits": {"memory": given.get("memory", most), **room, **gpu}}


def _affinity(order: Order) -> dict[str, Any]:
    if order.gpu:
        rules = [{"key": "nvidia.com/gpu.product", "operator": "In", "values": [order.gpu]}]
    else:
        need = order.need.total_bytes // MIB if order.need else 0
        rules = [
            # Kernels are made for compute capability 8.0 and newer.
            {"key": "nvidia.com/gpu.compute.major", "operator": "Gt", "values": ["7"]},
            {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": [str(need)]},
        ]
    required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _volumes(order: Order, disk: str | None) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": disk} if disk else {}}
    ]
    if order.volume:
        mounts.append({"name": "models", "mountPath": MODELS_FOLDER, "readOnly": True})
        claim = {"claimName": order.volume, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    return {"mounts": mounts, "volumes": volumes}
