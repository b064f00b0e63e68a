"""A plan: everything a deployment will create and cost, and the files that say it."""

from __future__ import annotations

import shlex
from dataclasses import field
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.units import memory_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.deploy.machines import Catalog, Machine
    from zse.deploy.order import Order


@record
class Cost:
    """What a replica costs by the hour."""

    usd_per_hour: float | None
    """Of one running replica; None when the platform has no fixed price."""
    sleeps: bool
    """Whether nothing is paid for compute while nobody asks."""
    source: str
    """Where the price stands, or why there is none."""
    prices_of: str = ""
    """The day that the list price was read; empty when the platform has no list."""
    always_on: int = 0
    """Replicas that never sleep."""

    def __str__(self) -> str:
        if self.usd_per_hour is None:
            return f"no list price on record; see {self.source}" if self.prices_of else self.source
        asleep = f"${self.always_on * self.usd_per_hour:.2f}/h while nobody asks"
        price = f"${self.usd_per_hour:.2f}/h for each running replica"
        listed = f"list price of {self.prices_of}, {self.source}" if self.prices_of else self.source
        return f"{price}, {asleep} ({listed})"


@record
class Request:
    """A call of a platform's own API, where no tool makes it."""

    method: str
    url: str
    body: Mapping[str, Any] = field(default_factory=dict)


@record
class Plan:
    """One deployment in a platform's words."""

    target: str = ""
    """The registry fills it in."""
    order: Order
    machine: Machine | None = None
    cost: Cost
    creates: tuple[str, ...]
    files: Mapping[str, str]
    """Path below the output folder -> text."""
    commands: tuple[tuple[str, ...], ...] = ()
    """What makes it real, run in the output folder."""
    request: Request | None = None
    """A call that makes it real, instead of commands."""
    access: str = ""
    """Who may ask; empty for what the target's table says."""
    notes: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    """What the platform asks for, beside the name, of those who look after it later."""
    first: str = ""
    """What people must do before the plan can be made real; empty when nothing is in the way."""

    def to_json(self) -> dict[str, Any]:
        order, machine = self.order, self.machine
        return {
            "target": self.target,
            "form": order.form,
            "name": order.name,
            "image": order.image,
            "model": order.model,
            "needed_bytes": order.need.total_bytes if order.need else None,
            "machine": machine.name if machine else None,
            "architectures": list(machine.architectures) if machine else [],
            "min_replicas": order.min_replicas,
            "max_replicas": order.max_replicas,
            "usd_per_hour": self.cost.usd_per_hour,
            "scales_to_zero": self.cost.sleeps,
            "creates": list(self.creates),
            "secrets": {use.variable: f"{use.secret}:{use.key}" for use in order.secrets},
            "access": self.access,
            "files": sorted(self.files),
            "commands": [list(words) for words in self.commands],
            "notes": list(self._all_notes),
        }

    def to_text(self) -> str:
        order, machine = self.order, self.machine
        form = f" ({order.form})" if order.form else ""
        memory = str(order.need) if order.need else "its size is not known here"
        lines = [f"{self.target}{form}: {order.name} from {order.image}"]
        rows = [
            ("model", f"{_model_words(order)}; {memory}"),
            ("machine", _machine_words(machine)),
            ("replicas", _replica_words(order, self.cost)),
            ("cost", str(self.cost)),
            ("access", self.access),
            *[("creates", text) for text in self.creates],
            *[("secret", f"{use.variable} from {use.secret}") for use in order.secrets],
            *[("file", name) for name in sorted(self.files)],
            *[("note", text) for text in self._all_notes],
            *[("then", shlex.join(words)) for words in self.commands],
        ]
        if self.request:
            rows.append(("then", f"{self.request.method} {self.request.url}"))
        last = ""
        for label, text in rows:
            lines.append(f"  {label if label != last else '':<9} {text}")
            last = label
        return "\n".join(lines)

    @property
    def _all_notes(self) -> tuple[str, ...]:
        return (*self.notes, self.first) if self.first else self.notes


def cost_of(order: Order, usd_per_hour: float | None, catalog: Catalog) -> Cost:
    """Return the cost of replicas that sleep when nobody asks."""
    return Cost(
        usd_per_hour=usd_per_hour,
        sleeps=order.min_replicas == 0,
        source=catalog.source,
        prices_of=catalog.prices_of,
        always_on=order.min_replicas,
    )


def pack_notes(order: Order, machine: Machine) -> tuple[str, ...]:
    """Say which kernels the image must hold, when it did not say which it holds."""
    if order.look.facts is not None:
        return ()
    return (f"the image needs a kernel pack for {', '.join(machine.architectures)}",)


def _model_words(order: Order) -> str:
    where: object = order.model_place
    if order.address is not None and where == order.address.url:
        where = order.address  # shown without the query, which may hold a signature
    if where:
        return f"read from {where}"
    facts = order.look.facts
    if facts and facts.weights == "url":
        return f"fetched by the image from {facts.model_url}"
    if facts and facts.weights == "baked":
        return " ".join(filter(None, ("in the image:", facts.model_name, facts.model_scheme)))
    return "on the volume" if order.is_mounted else "in the image"


def _machine_words(machine: Machine | None) -> str:
    if machine is None:
        return "what the host has"
    kinds = f", {'/'.join(machine.architectures)}" if machine.architectures else ""
    return f"{machine.name}: {machine.hardware}, {memory_text(machine.memory_mib << 20)}{kinds}"


def _replica_words(order: Order, cost: Cost) -> str:
    count = f"{order.min_replicas} to {order.max_replicas}, {order.concurrency} requests each"
    return f"{count}; asleep after {order.idle_seconds} s" if cost.sleeps else count
