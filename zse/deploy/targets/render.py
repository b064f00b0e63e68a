"""Render: a CPU service from the image by a blueprint. It rents no GPUs and never sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.machines import load_catalog
from zse.deploy.plan import Cost, Plan
from zse.deploy.templates import OMIT, render

if TYPE_CHECKING:
    from zse.deploy.machines import Machine
    from zse.deploy.order import Order

_MAX_SHUTDOWN_SECONDS = 300


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    catalog = load_catalog("render")
    machine = (
        catalog.named(given["plan"]) if "plan" in given else catalog.smallest(order.need, gpu=False)
    )
    return Plan(
        order=order,
        machine=machine,
        cost=Cost(
            usd_per_hour=machine.usd_per_hour,
            sleeps=False,
            source=catalog.source,
            prices_of=catalog.prices_of,
            always_on=max(1, order.min_replicas),
        ),
        creates=(f'{"web" if order.is_public else "private"} service "{order.name}"',),
        files={"render.yaml": render("render/render.yaml", _values(order, machine))},
        notes=_notes(order),
    )


def _values(order: Order, machine: Machine) -> dict[str, Any]:
    plain = {"ZSE_HOST": "0.0.0.0", **order.environment()}
    least = max(1, order.min_replicas)
    is_scaled = order.max_replicas > least
    credentials = {"fromRegistryCreds": {"name": order.registry_secret}}
    return {
        **vars(order),
        "type": "web" if order.is_public else "pserv",
        "credentials": credentials if order.registry_secret else OMIT,
        "plan": machine.name,
        "region": order.region or OMIT,
        "instances": OMIT if is_scaled else least,
        "scaling": {
            "minInstances": least,
            "maxInstances": order.max_replicas,
            "targetCPUPercent": 70,
        }
        if is_scaled
        else OMIT,
        "health_path": "/health/ready" if order.is_public else OMIT,
        "drain_seconds": min(_MAX_SHUTDOWN_SECONDS, max(1, order.drain_seconds)),
        "env": [
            *({"key": key, "value": value} for key, value in plain.items()),
            # Asked for in the dashboard once, and kept there.
            *({"key": use.variable, "sync": False} for use in order.secrets),
        ],
    }


def _notes(order: Order) -> tuple[str, ...]:
    notes = ["commit render.yaml to a repository and choose New > Blueprint in Render's dashboard"]
    if order.min_replicas == 0:
        notes.append("Render's paid services do not sleep: one replica always runs")
    return tuple(notes)
