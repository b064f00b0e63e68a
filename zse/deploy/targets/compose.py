"""Compose: one machine with Docker that serves the image on its GPU, or on its CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.deploy.order import MODELS_FOLDER
from zse.deploy.plan import Cost, Plan
from zse.deploy.templates import OMIT, render

if TYPE_CHECKING:
    from zse.deploy.order import Order

_HEALTH = ["CMD", "python3", "-I", "-S", "/opt/zse/healthcheck.py"]
_GPU = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
_TEMPORARY = "/tmp"
_COPIES = "copies"
"""Volume that keeps what the server fetched from one start to the next."""


def make_plan(order: Order, given: dict[str, Any]) -> Plan:  # noqa: ARG001 - it has none
    return Plan(
        order=order,
        cost=Cost(
            usd_per_hour=None, sleeps=False, source="nothing beyond the machine, which is yours"
        ),
        creates=tuple(_creates(order)),
        files={"compose.yaml": render("compose/compose.yaml", _values(order))},
        commands=(("docker", "compose", "up", "--detach", "--wait"),),
        notes=_notes(order),
    )


def _creates(order: Order) -> list[str]:
    where = "on one NVIDIA GPU" if order.wants_gpu else "on the CPUs"
    service = [f'service "server" of the project {order.name}, {where}']
    return [*service, *([f'volume "{_COPIES}" for the fetched model'] if order.is_fetched else [])]


def _values(order: Order) -> dict[str, Any]:
    host = "" if order.is_public else "127.0.0.1:"
    fetched = {"ZSE_CACHE_DIR": f"{_TEMPORARY}/zse"} if order.is_fetched else {}
    plain = {**fetched, **order.environment()}
    return {
        **vars(order),
        "image": _literal(order.image),
        "environment": {
            **{name: _literal(value) for name, value in plain.items()},
            # Compose fills these in from the environment or the .env file beside it, or refuses.
            **{u.variable: f"${{{_variable(u.secret)}:?set it in .env}}" for u in order.secrets},
        },
        "ports": [f"{host}{order.port}:{order.port}"],
        "tmpfs": OMIT if order.is_fetched else [_TEMPORARY],
        "volumes": _mounts(order) or OMIT,
        "named_volumes": _named_volumes(order) or OMIT,
        "deploy": {"resources": {"reservations": {"devices": [_GPU]}}} if order.wants_gpu else OMIT,
        "grace": f"{order.drain_seconds + 10}s",
        "health_test": _HEALTH,
        "start_period": f"{order.startup_seconds}s",
    }


def _mounts(order: Order) -> list[str]:
    models = [f"{_literal(order.volume)}:{MODELS_FOLDER}:ro"] if order.volume else []
    # A new volume takes the owner and the mode of the image's /tmp, so the server can write there.
    return [*models, *([f"{_COPIES}:{_TEMPORARY}"] if order.is_fetched else [])]


def _named_volumes(order: Order) -> dict[str, Any]:
    is_folder = order.volume.startswith((".", "/"))
    models = {order.volume: {"external": True}} if order.volume and not is_folder else {}
    return {**models, **({_COPIES: {}} if order.is_fetched else {})}


def _notes(order: Order) -> tuple[str, ...]:
    notes = ["log in first: docker login"] if order.registry_secret else []
    if order.look.facts is None and not order.gpu:
        notes.append("taken for a GPU image: give --gpu none for one of the cpu recipe")
    return tuple(notes)


def _literal(text: str) -> str:
    return text.replace("$", "$$")


def _variable(secret: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in secret).upper()
