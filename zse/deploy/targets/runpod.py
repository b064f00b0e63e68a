"""RunPod: a load-balancing endpoint of the image as it is, or a queue worker around it.

The request creates the endpoint; template and hub files describe the same thing for the console.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.deploy.machines import Machine, load_catalog
from zse.deploy.plan import Plan, Request, cost_of, pack_notes
from zse.deploy.templates import render

if TYPE_CHECKING:
    from zse.deploy.order import Order

URL = "https://api.runpod.io/v2/serverless"
VOLUME_FOLDER = "/runpod-volume"
"""Where RunPod mounts a network volume; it cannot be changed."""
_GB = 10**9
_IMAGE_GB = 3
_MAX_INIT_SECONDS = 800
_WORKER_FIRST = (
    "a queue worker needs RunPod's SDK: build and push the Dockerfile, and name the result with "
    "--set worker-image=REF"
)


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    if order.is_mounted and order.model:
        place = order.environment(VOLUME_FOLDER)["ZSE_MODEL"]
        order = replace(order, env={"ZSE_MODEL": place, **order.env})
    catalog = load_catalog("runpod")
    machine = catalog.named(order.gpu) if order.gpu else catalog.smallest(order.need)
    body = _body(order, machine, given)
    is_queue = order.form == "queue"
    return Plan(
        order=order,
        machine=machine,
        cost=cost_of(order, machine.usd_per_hour, catalog),
        creates=(
            f'serverless endpoint "{order.name}" of type {body["type"]}',
            *(
                [f"attaches the network volume {order.volume} at {VOLUME_FOLDER}"]
                if order.volume
                else []
            ),
        ),
        files={
            "endpoint.json": json.dumps(body, indent=2) + "\n",
            "template.json": json.dumps(_template(order, body), indent=2) + "\n",
            ".runpod/hub.json": render("runpod/hub.json", _hub(order, machine, body)),
            ".runpod/tests.json": render("runpod/tests.json", _hub(order, machine, body)),
            **(_queue_files(order) if is_queue else {}),
        },
        request=Request(method="POST", url=URL, body=body),
        notes=_notes(order, machine),
        first=_WORKER_FIRST if is_queue and "worker-image" not in given else "",
    )


def _body(order: Order, machine: Machine, given: dict[str, Any]) -> dict[str, Any]:
    """Return the request that creates the endpoint (REST API, version 2)."""
    is_queue = order.form == "queue"
    scaling = (
        {"type": "QUEUE_DELAY", "queueDelay": 1}
        if is_queue
        else {"type": "REQUEST_COUNT", "requestCount": order.concurrency}
    )
    centers = given.get("data-centers") or ([order.region] if order.region else [])
    optional = {
        "registry": order.registry_secret,
        "networkVolumes": [order.volume] if order.volume else [],
        "dataCenterIds": centers,
    }
    return {
        "name": order.name,
        "type": "QUEUE" if is_queue else "LOAD_BALANCER",
        "image": given.get("worker-image", order.image),
        "env": _environment(order),
        "disk": _disk_gb(order),
        "gpu": {"pools": [machine.name], "count": 1},
        "workers": {
            "min": order.min_replicas,
            "max": order.max_replicas,
            "idleTimeout": max(1, order.idle_seconds),
        },
        "scaling": scaling,
        "flashboot": given["flashboot"],
        **({} if is_queue else {"ports": [f"{order.port}/http"]}),
        **{name: value for name, value in optional.items() if value},
    }


def _environment(order: Order) -> dict[str, str]:
    """Return the variables of the worker; a secret is a reference that RunPod fills in."""
    values = order.environment()
    if order.form == "queue":
        values["ZSE_PORT"] = values.pop("PORT")  # that variable would make it a balanced endpoint
    else:
        values |= {"PORT_HEALTH": str(order.port), "HEALTH_CHECK_PATH": "/ping"}
    return {
        "ZSE_HOST": "0.0.0.0",
        # An image with its model leaves little of the container's disk free, and that is well.
        "RUNPOD_MIN_DISK_PERCENT": "1",
        "RUNPOD_INIT_TIMEOUT": str(min(order.startup_seconds, _MAX_INIT_SECONDS)),
        **values,
        **{use.variable: f"{{{{ RUNPOD_SECRET_{use.secret} }}}}" for use in order.secrets},
    }


def _template(order: Order, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": order.name,
        "imageName": body["image"],
        "isServerless": True,
        "containerDiskInGb": body["disk"],
        "env": body["env"],
        "ports": body.get("ports", []),
        **({"containerRegistryAuthId": order.registry_secret} if order.registry_secret else {}),
    }


def _hub(order: Order, machine: Machine, body: dict[str, Any]) -> dict[str, Any]:
    env = body["env"]
    return {
        "title": order.name,
        "description": "An OpenAI endpoint that serves one model from a zse image",
        "runs_on": "GPU",
        "endpoint_type": "QB" if order.form == "queue" else "LB",
        "disk_gb": body["disk"],
        "gpu_ids": machine.name,
        "gpu_count": 1,
        "gpu_type": machine.type_id,
        "timeout_ms": order.startup_seconds * 1000,
        "env": [{"key": key, "value": value} for key, value in env.items()],
    }


def _queue_files(order: Order) -> dict[str, str]:
    return {
        "handler.py": render("runpod/handler.py", {"concurrency": order.concurrency}),
        "Dockerfile": render("runpod/Dockerfile", {"image": order.image}),
    }


def _notes(order: Order, machine: Machine) -> tuple[str, ...]:
    notes = [*pack_notes(order, machine)]
    if order.form != "queue":
        notes.append("a request ends after 5.5 minutes; use --form queue for longer ones")
    if order.is_public:
        notes.append("RunPod always asks for its API key: --public changes nothing")
    return tuple(notes)


def _disk_gb(order: Order) -> int:
    model = order.need.stored_bytes if order.need and not order.is_mounted else 0
    # The image is unpacked there, and a worker is ill when a tenth of its disk is not free.
    return max(10, (_IMAGE_GB * _GB + model) * 5 // 4 // _GB + 1)
