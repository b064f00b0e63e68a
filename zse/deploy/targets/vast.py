"""Vast: a rented machine from its market, found by memory. It runs, and costs, until destroyed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from zse.deploy.machines import load_catalog
from zse.deploy.plan import Cost, Plan, pack_notes
from zse.deploy.templates import render
from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.deploy.machines import Machine
    from zse.deploy.order import Order

_GB = 10**9
_IMAGE_GB = 3
_NEEDED_CUDA = 12.4


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    catalog = load_catalog("vast")
    machine = catalog.named(order.gpu) if order.gpu else catalog.smallest(order.need)
    values = _values(order, machine, given)
    return Plan(
        order=order,
        machine=machine,
        cost=Cost(
            usd_per_hour=_price(given),
            sleeps=False,
            source=f"hosts set their prices: {catalog.source}; --set max-usd-per-hour bounds it",
            always_on=1,
        ),
        creates=("one instance on the cheapest machine of the market that fits",),
        files={name: render(f"vast/{name}", values) for name in ("template.json", "launch.sh")},
        commands=(("sh", "launch.sh"),),
        notes=_notes(order, machine),
    )


def _values(order: Order, machine: Machine, given: dict[str, Any]) -> dict[str, Any]:
    environment = {"ZSE_HOST": "0.0.0.0", **order.environment()}
    options = ["-p", f"{order.port}:{order.port}"]
    for name, value in environment.items():
        options += ["-e", f"{name}={value}"]
    filters = {
        "gpu_name": {"eq": machine.name.replace("_", " ")},
        "num_gpus": {"eq": 1},
        "cuda_max_good": {"gte": _NEEDED_CUDA},
        "verified": {"eq": True},
        "rentable": {"eq": True},
    }
    query = (
        f"gpu_name={machine.name} num_gpus=1 cuda_vers>={_NEEDED_CUDA} verified=true rentable=true"
    )
    if order.need:
        # The name alone does not tell a 40 GB card from an 80 GB one.
        query += f" gpu_ram>={order.need.total_bytes // 2**30 + 1}"
    if (price := _price(given)) is not None:
        query += f" dph_total<={price}"
    return {
        **vars(order),
        "docker_options": shlex.join(options),
        "disk_gb": _disk_gb(order),
        "filters": filters,
        "query": query,
    }


def _price(given: dict[str, Any]) -> float | None:
    text = given.get("max-usd-per-hour")
    if text is None:
        return None
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not 0 < price < float("inf"):
        raise UsageError(f"max-usd-per-hour={text} is not a price")
    return price


def _disk_gb(order: Order) -> int:
    model = order.need.stored_bytes if order.need else 0
    return max(16, (_IMAGE_GB * _GB + 2 * model) // _GB)


def _notes(order: Order, machine: Machine) -> tuple[str, ...]:
    notes = [*pack_notes(order, machine), "destroy it with: vastai destroy instance ID"]
    notes += [
        f"keep {use.variable} at Vast: vastai create env-var {use.variable} VALUE"
        for use in order.secrets
    ]
    return tuple(notes)
