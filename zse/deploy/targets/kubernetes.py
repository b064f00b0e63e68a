"""Kubernetes: a kustomize base, and overlays that either sleep with KEDA or never do.

GPU nodes are chosen by the memory and the architecture that NVIDIA's feature discovery writes on
them, so no table of GPU types is needed and any node with enough memory will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.kubernetes_pod import disk_of, pod_values, service_account
from zse.deploy.plan import Cost, Plan
from zse.deploy.templates import OMIT, render
from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.deploy.order import Order

FORMS = ("scale-to-zero", "always-on", "mesh", "ray")
_SLEEPING, _AWAKE, _MESH, _RAY = FORMS
_INTERCEPTOR = "keda-add-ons-http-interceptor-proxy.keda"


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    """Plan a Deployment, a Service and what scales them."""
    _check(order, given)
    values = _values(order, given)
    if order.form in (_MESH, _RAY):
        return _over_machines(order, given, values)
    base = _base_names(given)
    files = {
        f"base/{name}": render(f"kubernetes/base/{name}", {**values, "resource_names": base})
        for name in ("kustomization.yaml", *base)
    }
    for overlay in (_SLEEPING, _AWAKE):
        files |= _overlay_files(overlay, values, given)
    sleeps = order.form == _SLEEPING
    scaler = "InterceptorRoute and ScaledObject (KEDA)" if sleeps else "fixed replicas"
    return Plan(
        order=order,
        cost=Cost(
            usd_per_hour=None,
            sleeps=sleeps and order.min_replicas == 0,
            source="the cluster's own prices: an idle node costs until it is removed",
        ),
        creates=(f'Deployment and Service "{order.name}" in {values["namespace"]}', scaler),
        access=_access(order, given),
        files=files,
        commands=(("kubectl", "apply", "-k", f"overlays/{order.form}"),),
        notes=_notes(order, given),
        details={"namespace": values["namespace"]},
    )


def _over_machines(order: Order, given: dict[str, Any], values: dict[str, Any]) -> Plan:
    """Plan a mesh, or replicas under Ray."""
    from zse.deploy.kubernetes_mesh import (  # noqa: PLC0415 - which most plans are without
        how_to_begin,
        mesh_files,
        mesh_notes,
        ray_files,
        ray_notes,
    )

    is_mesh = order.form == _MESH
    service = {"kubernetes/base/service.yaml": f"overlays/{order.form}/service.yaml"}
    files = (mesh_files if is_mesh else ray_files)(order, given, values)
    creates = (
        (f'{given["mesh-nodes"]} nodes "{order.name}-nodes" and a front "{order.name}"',)
        if is_mesh
        else (f'RayService "{order.name}": {order.min_replicas} to {order.max_replicas} replicas',)
    )
    if is_mesh:
        files |= {path: render(name, values) for name, path in service.items()}
        files["overlays/mesh/kustomization.yaml"] = render(
            "kubernetes/mesh/kustomization.yaml",
            {**values, "resource_names": [*_names_in(files), "service.yaml"]},
        )
    return Plan(
        order=order,
        cost=Cost(
            usd_per_hour=None,
            sleeps=not is_mesh and order.min_replicas == 0,
            source="the cluster's own prices: an idle node costs until it is removed",
        ),
        creates=creates,
        access=_access(order, given),
        files=files,
        commands=(("kubectl", "apply", "-k", f"overlays/{order.form}"),),
        notes=mesh_notes(order) if is_mesh else ray_notes(),
        details={"namespace": values["namespace"]},
        first=how_to_begin(order) if is_mesh else "",
    )


def _names_in(files: dict[str, str]) -> list[str]:
    names = (path.rpartition("/")[2] for path in files)
    return [name for name in names if name not in ("kustomization.yaml", "service.yaml")]


def _check(order: Order, given: dict[str, Any]) -> None:
    for name in ("ingress-class", "gateway"):
        if name in given and "host" not in given:
            raise UsageError(f"{name} needs a host", hint="Give --set host=NAME.")
    if "inference-pool" in given and "gateway" not in given:
        raise UsageError("inference-pool needs a gateway", hint="Give --set gateway=NAME.")
    if "tls-secret" in given and "ingress-class" not in given:
        raise UsageError("tls-secret is for an Ingress", hint="Give --set ingress-class=NAME.")
    if _OUTSIDE & given.keys():
        order.require_keys(f"{given['host']} is reachable from outside the cluster")


def _base_names(given: dict[str, Any]) -> list[str]:
    return [
        "deployment.yaml",
        "service.yaml",
        "disruption.yaml",
        *(["account.yaml"] if "service-account-annotations" in given else []),
        *(["monitor.yaml"] if given["scrape"] == "pod-monitor" else []),
    ]


def _overlay_files(overlay: str, values: dict[str, Any], given: dict[str, Any]) -> dict[str, str]:
    """Return an overlay's files: what scales, and what lets requests in from outside."""
    names = ["route.yaml", "scaledobject.yaml"] if overlay == _SLEEPING else []
    if "ingress-class" in given:
        # An Ingress names services of its own namespace; the interceptor is in another.
        names += ["ingress.yaml", *(["interceptor.yaml"] if overlay == _SLEEPING else [])]
    if "gateway" in given and overlay == _AWAKE:
        has_pool = "inference-pool" in given
        names += ["inferencepool.yaml", "poolroute.yaml"] if has_pool else ["gatewayroute.yaml"]
    patches = ["replicas.yaml"] if overlay == _SLEEPING else []
    sleeping = {"backend": f"{values['name']}-interceptor", "backend_port": 8080}
    local = {
        **values,
        **(sleeping if overlay == _SLEEPING else {"backend": values["name"], "backend_port": 80}),
        "resource_names": ["../../base", *names],
    }
    shared = {
        *("ingress.yaml", "gatewayroute.yaml", "interceptor.yaml"),
        *("inferencepool.yaml", "poolroute.yaml"),
    }
    return {
        f"overlays/{overlay}/{name}": render(
            f"kubernetes/{'outside' if name in shared else overlay}/{name}", local
        )
        for name in ("kustomization.yaml", *names, *patches)
    }


def _values(order: Order, given: dict[str, Any]) -> dict[str, Any]:
    namespace = given["namespace"]
    host = given.get("host", "")
    service = f"{order.name}.{namespace}"
    names = [order.name, service, f"{service}.svc", f"{service}.svc.cluster.local"]
    place, _, gateway = given.get("gateway", "").rpartition("/")
    tls = [{"hosts": [host], "secretName": given["tls-secret"]}] if "tls-secret" in given else OMIT
    return {
        **vars(order),
        "namespace": namespace,
        "replicas": max(1, order.min_replicas),
        "readiness_timeout": f"{order.startup_seconds}s",
        "progress_seconds": order.startup_seconds + 300,
        "strategy": {"type": "Recreate"} if order.has_gpu else {"type": "RollingUpdate"},
        "service_type": "LoadBalancer" if order.is_public else "ClusterIP",
        "hosts": [*([host] if host else []), *names],
        "host": host,
        "account": service_account(order, given),
        "account_annotations": given.get("service-account-annotations", OMIT),
        "max_unavailable": given["max-unavailable"],
        "ingress_class": given.get("ingress-class", OMIT),
        "tls": tls,
        "gateways": [{"name": gateway, **({"namespace": place} if place else {})}],
        "endpoint_picker": given.get("inference-pool", OMIT),
        "interceptor": f"{_INTERCEPTOR}.svc.cluster.local",
        **pod_values(order, given),
    }


_OUTSIDE = frozenset({"ingress-class", "gateway"})
"""Settings that let requests in from outside the cluster."""


def _access(order: Order, given: dict[str, Any]) -> str:
    if order.is_public:
        return "whoever reaches the load balancer"
    if outside := _OUTSIDE & given.keys():
        through = "Ingress" if "ingress-class" in outside else "Gateway"
        return f"whoever reaches {given['host']} through the {through}"
    return (
        "pods of the cluster, by a ClusterIP service, and whoever a gateway or a NetworkPolicy of "
        "yours lets through"
    )


def _notes(order: Order, given: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if order.form == _SLEEPING:
        notes.append(f"send requests to {_INTERCEPTOR}:8080, Host as in route.yaml")
        if order.is_public:
            notes.append("the load balancer goes past the interceptor: only it can wake a pod")
    if order.has_gpu and not order.gpu:
        notes.append("nodes need the labels of NVIDIA's GPU feature discovery")
    if order.reads_s3 and not service_account(order, given) and not order.secrets:
        notes.append("s3:// needs rights: --set service-account=NAME, or --secret for the keys")
    if "inference-pool" in given:
        notes.append("requests go where the endpoint picker of that name says, from its own chart")
    if disk_of(order, given) is None:
        notes.append("the copy of the model has no limit on the node's disk: --set disk-gib=N")
    return tuple(notes)
