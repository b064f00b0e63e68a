"""Railway: a CPU service built from the image, put to sleep when nobody asks. It rents no GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.plan import Cost, Plan
from zse.deploy.templates import render
from zse.units import MIB

if TYPE_CHECKING:
    from zse.deploy.order import Order

_USD_PER_GIB_HOUR = 10 / 730
_USD_PER_CPU_HOUR = 20 / 730
_BUSY_CPUS = 4


def make_plan(order: Order, given: dict[str, Any]) -> Plan:  # noqa: ARG001 - it has none
    gib = (order.need.total_bytes / MIB / 1024) if order.need else 4.0
    sleeps = order.min_replicas == 0
    variables = {"ZSE_HOST": "0.0.0.0", **order.environment()}
    settings = [f"{name}={value}" for name, value in variables.items()]
    values = {**vars(order), "replicas": max(1, order.min_replicas), "sleeps": sleeps}
    return Plan(
        order=order,
        cost=Cost(
            usd_per_hour=round(gib * _USD_PER_GIB_HOUR + _BUSY_CPUS * _USD_PER_CPU_HOUR, 2),
            sleeps=sleeps,
            source="railway.com/pricing, with 4 busy CPUs",
            prices_of="2026-06",
            always_on=order.min_replicas,
        ),
        creates=(f'service "{order.name}" of the linked project',),
        files={name: render(f"railway/{name}", values) for name in ("railway.json", "Dockerfile")},
        commands=(
            ("railway", "add", "--service", order.name),
            ("railway", "variables", "--service", order.name, *_each("--set", settings)),
            ("railway", "up", "--service", order.name, "--detach"),
            *((("railway", "domain", "--service", order.name),) if order.is_public else ()),
        ),
        notes=_notes(order),
    )


def _each(flag: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (flag, value)]


def _notes(order: Order) -> tuple[str, ...]:
    notes = [f"set {use.variable} in the service's variables, sealed" for use in order.secrets]
    if order.volume:
        notes.append(f"attach the volume {order.volume} at /models in the service's settings")
    if order.registry_secret:
        notes.append(
            "Railway builds from public images; for a private one set the service's source"
        )
    return tuple(notes)
