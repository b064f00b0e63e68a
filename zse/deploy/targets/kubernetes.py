"""Kubernetes: a kustomize base, and overlays that either sleep with KEDA or never do.

GPU nodes are chosen by the memory and the architecture that NVIDIA's feature discovery writes on
them, so no table of GPU types is needed and any node with enough memory will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.order import MODELS_FOLDER
from zse.deploy.plan import Cost, Plan
from zse.deploy.settings import Setting, take_settings
from zse.deploy.templates import OMIT, render
from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.deploy.order import Order

FORMS = ("scale-to-zero", "always-on")
_MIB = 1 << 20
_GPU = "nvidia.com/gpu"
_GPU_CONTEXT_MIB = 600
SETTINGS = (
    Setting(name="namespace", default="default", meaning="namespace of everything"),
    Setting(name="host", meaning="one more Host that the endpoint answers to"),
    Setting(name="cpu", meaning="processors asked for [2 with a GPU, else 4]"),
)
_BASE = ("kustomization.yaml", "deployment.yaml", "service.yaml")
_OVERLAYS = {
    "scale-to-zero": ("kustomization.yaml", "replicas.yaml", "route.yaml", "scaledobject.yaml"),
    "always-on": ("kustomization.yaml",),
}


def make_plan(order: Order) -> Plan:
    """Plan a Deployment, a Service and what scales them."""
    order = order.with_form(FORMS)
    extra = take_settings(order, SETTINGS)
    if order.bucket:
        raise UsageError(
            "Kubernetes mounts no bucket by itself",
            hint="Give s3://BUCKET/KEY as MODEL, which streams, or a claim with --volume.",
        )
    values = _values(order, extra)
    files = {f"base/{name}": render(f"kubernetes/base/{name}", values) for name in _BASE}
    for overlay, names in _OVERLAYS.items():
        for name in names:
            path = f"{overlay}/{name}"
            files[f"overlays/{path}"] = render(f"kubernetes/{path}", values)
    sleeps = order.form == "scale-to-zero"
    scaler = "InterceptorRoute and ScaledObject (KEDA)" if sleeps else "fixed replicas"
    return Plan(
        target="kubernetes",
        order=order,
        machine=None,
        cost=Cost(
            usd_per_hour=None,
            sleeps=sleeps and order.min_replicas == 0,
            source="the cluster's own prices: an idle node costs until it is removed",
        ),
        creates=(f'Deployment and Service "{order.name}" in {values["namespace"]}', scaler),
        access=_access(order),
        files=files,
        commands=(("kubectl", "apply", "-k", f"overlays/{order.form}"),),
        notes=_notes(order),
    )


def _values(order: Order, extra: dict[str, Any]) -> dict[str, Any]:
    namespace = extra["namespace"]
    hosts = [extra["host"]] if "host" in extra else []
    service = f"{order.name}.{namespace}"
    return {
        "name": order.name,
        "namespace": namespace,
        "image": order.image,
        "replicas": max(1, order.min_replicas),
        "min_replicas": order.min_replicas,
        "max_replicas": order.max_replicas,
        "concurrency": order.concurrency,
        "idle_seconds": order.idle_seconds,
        "startup_seconds": order.startup_seconds,
        "readiness_timeout": f"{order.startup_seconds}s",
        "progress_seconds": order.startup_seconds + 300,
        "grace_seconds": order.drain_seconds + 10,
        "strategy": {"type": "Recreate"} if order.has_gpu else {"type": "RollingUpdate"},
        "pull_secrets": [{"name": order.registry_secret}] if order.registry_secret else OMIT,
        "port": order.port,
        "env": _environment(order),
        "resources": _resources(order, extra),
        "tolerations": [{"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}]
        if order.has_gpu
        else OMIT,
        "affinity": _affinity(order) if order.has_gpu else OMIT,
        "service_type": "LoadBalancer" if order.is_public else "ClusterIP",
        "hosts": [*hosts, order.name, service, f"{service}.svc", f"{service}.svc.cluster.local"],
        **_volumes(order),
    }


def _environment(order: Order) -> list[dict[str, Any]]:
    values = {"ZSE_HOST": "0.0.0.0", "ZSE_CACHE_DIR": "/tmp/zse", **order.environment()}
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


def _resources(order: Order, extra: dict[str, Any]) -> dict[str, Any]:
    if order.has_gpu:
        # The weights go through a small ring: host memory does not grow with the model.
        return {
            "requests": {"cpu": extra.get("cpu", "2"), "memory": "2Gi"},
            "limits": {"memory": "8Gi", _GPU: 1},
        }
    need_mib = order.need.total_bytes // _MIB if order.need else 4096
    memory = f"{max(512, need_mib * 5 // 4)}Mi"
    return {
        "requests": {"cpu": extra.get("cpu", "4"), "memory": memory},
        "limits": {"memory": memory},
    }


def _affinity(order: Order) -> dict[str, Any]:
    if order.gpu:
        rules = [{"key": "nvidia.com/gpu.product", "operator": "In", "values": [order.gpu]}]
    else:
        need = order.need.total_bytes // _MIB + _GPU_CONTEXT_MIB if order.need else 0
        rules = [
            # Kernels are made for compute capability 8.0 and newer.
            {"key": "nvidia.com/gpu.compute.major", "operator": "Gt", "values": ["7"]},
            {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": [str(need)]},
        ]
    required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _volumes(order: Order) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    if order.volume:
        mounts.append({"name": "models", "mountPath": MODELS_FOLDER, "readOnly": True})
        claim = {"claimName": order.volume, "readOnly": True}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    return {"mounts": mounts, "volumes": volumes}


def _access(order: Order) -> str:
    if order.is_public:
        return "anyone who reaches the load balancer: nothing asks for a key"
    return (
        "pods of the cluster, by a ClusterIP service: nothing asks for a key, so whoever a gateway"
        " or a NetworkPolicy of yours lets through may ask"
    )


def _notes(order: Order) -> tuple[str, ...]:
    notes = []
    if order.form == "scale-to-zero":
        notes.append(
            "send requests to keda-add-ons-http-interceptor-proxy.keda:8080, Host as in route.yaml"
        )
        if order.is_public:
            notes.append("the load balancer goes past the interceptor: only it can wake a pod")
    if order.has_gpu and not order.gpu:
        notes.append("nodes need the labels of NVIDIA's GPU feature discovery")
    return tuple(notes)
