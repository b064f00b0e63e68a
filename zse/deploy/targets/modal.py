"""Modal: an app file for its client, as a server or as a class with a memory snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.machines import load_catalog
from zse.deploy.plan import Plan, cost_of, pack_notes
from zse.deploy.templates import render
from zse.errors import UsageError
from zse.units import MIB

if TYPE_CHECKING:
    from zse.deploy.machines import Machine
    from zse.deploy.order import Order

COMMAND = ["/usr/bin/python3", "-I", "-S", "/opt/zse/boot.py"]
"""The image's entry point; the full path, because Modal puts its own Python first."""
CPU_PROCESSORS = 8.0
_CPU_USD_PER_HOUR = 0.0473
_GIB_USD_PER_HOUR = 0.008
_REGION = "us-east"
_MAX_GRACE_SECONDS = 3600


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    catalog = load_catalog("modal")
    machine: Machine | None = None
    if order.has_gpu:
        machine = catalog.named(order.gpu) if order.gpu else catalog.smallest(order.need)
        usd_per_hour = machine.usd_per_hour
    else:
        gib = _ram_mib(order) / 1024
        usd_per_hour = round(CPU_PROCESSORS * _CPU_USD_PER_HOUR + gib * _GIB_USD_PER_HOUR, 2)
    return Plan(
        order=order,
        machine=machine,
        cost=cost_of(order, usd_per_hour, catalog),
        creates=(f'app "{order.name}" with one {order.form}', *_mount_words(order)),
        files={"app.py": render(f"modal/{order.form}.py", _values(order, machine, given))},
        commands=(("modal", "deploy", "app.py"),),
        notes=_notes(order, machine),
    )


def _values(order: Order, machine: Machine | None, given: dict[str, Any]) -> dict[str, Any]:
    secrets: dict[str, list[str]] = {}
    for use in order.secrets:
        if use.key != use.variable:
            raise UsageError(
                f"--secret {use.variable}: Modal hands out a secret's entries under their names",
                hint=f"Rename the entry {use.key} of {use.secret} to {use.variable}.",
            )
        secrets.setdefault(use.secret, []).append(use.variable)
    bucket = {
        "bucket_name": order.bucket,
        "bucket_endpoint_url": given.get("bucket-endpoint"),
        "key_prefix": given.get("bucket-prefix"),
    }
    return {
        **vars(order),
        "registry_secret": order.registry_secret or None,
        "gpu": machine.name if machine else None,
        "has_gpu": machine is not None,
        "cpu": None if machine else CPU_PROCESSORS,
        "memory_mib": None if machine else _ram_mib(order),
        "environment": {"ZSE_HOST": "0.0.0.0", **order.environment()},
        "secrets": secrets,
        "volume": order.volume or None,
        "bucket": {k: v for k, v in bucket.items() if v} if order.bucket else None,
        "bucket_secret": order.bucket_secret or None,
        "command": COMMAND,
        "max_concurrency": order.concurrency * 4,
        "idle_seconds": max(2, order.idle_seconds),
        "drain_seconds": min(order.drain_seconds, _MAX_GRACE_SECONDS),
        "region": order.region or _REGION,
        "is_private": not order.is_public,
    }


def _mount_words(order: Order) -> tuple[str, ...]:
    kind = "volume" if order.volume else "bucket"
    name = order.volume or order.bucket
    return (f'mounts the {kind} "{name}" at /models (it must exist)',) if name else ()


def _notes(order: Order, machine: Machine | None) -> tuple[str, ...]:
    notes = ["Modal runs linux/amd64 images only"]
    if machine:
        notes += pack_notes(order, machine)
    if order.bucket:
        notes.append("a bucket mount is slow at random reads: s3:// as MODEL streams faster")
    if order.form == "class":
        notes.append("GPU memory snapshots are an alpha of Modal's; the first cold starts are slow")
    return tuple(notes)


def _ram_mib(order: Order) -> int:
    need = order.need.total_bytes // MIB if order.need else 0
    return max(4096, need * 5 // 4)
