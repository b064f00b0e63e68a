"""Compose: one machine with Docker, a CPU profile and a GPU profile of the same server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.order import MODELS_FOLDER
from zse.deploy.plan import Cost, Plan
from zse.deploy.settings import take_settings
from zse.deploy.templates import OMIT, render
from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.deploy.order import Order

_HEALTH = ["CMD", "python3", "-I", "-S", "/opt/zse/healthcheck.py"]


def make_plan(order: Order) -> Plan:
    """Plan a compose file."""
    order = order.with_form()
    take_settings(order)
    if order.bucket:
        raise UsageError("compose mounts no buckets", hint="Give s3://BUCKET/KEY as MODEL.")
    profile = "gpu" if order.has_gpu else "cpu"
    return Plan(
        target="compose",
        order=order,
        machine=None,
        cost=Cost(
            usd_per_hour=None, sleeps=False, source="nothing beyond the machine, which is yours"
        ),
        creates=(f'services "cpu" and "gpu" of the project {order.name}, in profiles',),
        access=f"anyone who reaches port {order.port} of this machine: nothing asks for a key"
        if order.is_public
        else f"programs on this machine (127.0.0.1:{order.port}); no key is asked for",
        files={"compose.yaml": render("compose/compose.yaml", _values(order))},
        commands=(("docker", "compose", "--profile", profile, "up", "--detach", "--wait"),),
        notes=("log in first: docker login",) if order.registry_secret else (),
    )


def _values(order: Order) -> dict[str, Any]:
    host = "" if order.is_public else "127.0.0.1:"
    is_folder = order.volume.startswith((".", "/"))
    return {
        "name": order.name,
        "image": _literal(order.image),
        "environment": {
            **{name: _literal(value) for name, value in order.environment().items()},
            # Compose fills these in from the environment or the .env file beside it, or refuses.
            **{u.variable: f"${{{_variable(u.secret)}:?set it in .env}}" for u in order.secrets},
        },
        "ports": [f"{host}{order.port}:{order.port}"],
        "volumes": [f"{_literal(order.volume)}:{MODELS_FOLDER}:ro"] if order.volume else OMIT,
        "named_volumes": {order.volume: {"external": True}}
        if order.volume and not is_folder
        else OMIT,
        "grace": f"{order.drain_seconds + 10}s",
        "health_test": _HEALTH,
        "start_period": f"{order.startup_seconds}s",
    }


def _literal(text: str) -> str:
    """Escape what compose would fill in."""
    return text.replace("$", "$$")


def _variable(secret: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in secret).upper()
