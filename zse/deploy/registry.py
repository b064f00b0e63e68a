"""Every platform, imported only when it is asked for.

The table of a target in ``targets`` says what ``--set`` knows, and what does what a verb says.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from zse.deploy.settings import Setting, take_settings
from zse.deploy.tables import target_table
from zse.errors import UsageError
from zse.records import record
from zse.unread_variables import unread_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.deploy.order import Order
    from zse.deploy.plan import Plan


@record
class Target:
    """One platform."""

    summary: str
    forms: tuple[str, ...] = ()
    """The first is taken when none is asked for."""
    has_gpus: bool = True
    has_cpus: bool = False
    """Whether it runs images without a GPU."""
    follows_image: bool = False
    """Whether a CPU image makes it a CPU deployment, without being told."""
    has_secret_entries: bool = False
    """Whether one secret of the platform holds several values, each under a key."""


TARGETS: dict[str, Target] = {
    "modal": Target(
        summary="an app for Modal's client",
        forms=("server", "class"),
        has_cpus=True,
        has_secret_entries=True,
    ),
    "runpod": Target(
        summary="a serverless endpoint through RunPod's API", forms=("load-balancer", "queue")
    ),
    "terraform": Target(
        summary="a root module for a cloud",
        forms=(
            "gcp-cloud-run-gpu",
            "azure-container-apps-gpu",
            "aws-sagemaker-async",
            "aws-ecs-gpu",
            "runpod-endpoint",
        ),
        has_secret_entries=True,
    ),
    "kubernetes": Target(
        summary="a kustomize base with overlays, KEDA for sleep; a mesh; actors of Ray",
        forms=("scale-to-zero", "always-on", "mesh", "ray"),
        has_cpus=True,
        has_secret_entries=True,
    ),
    "compose": Target(
        summary="one machine with Docker, CPU or GPU", has_cpus=True, follows_image=True
    ),
    "railway": Target(summary="a CPU service on Railway", has_gpus=False, has_cpus=True),
    "render": Target(summary="a CPU service on Render", has_gpus=False, has_cpus=True),
    "vast": Target(summary="a machine from Vast's market"),
}


def find_target(name: str) -> Target:
    """Return a target by name.

    Raises:
        UsageError: There is no such target.
    """
    if name not in TARGETS:
        raise UsageError(
            f"there is no target {name!r}", hint=f"Choose one of {', '.join(TARGETS)}."
        )
    return TARGETS[name]


def settings_of(name: str) -> tuple[Setting, ...]:
    """Return what ``--set`` of a target knows, of all its forms."""
    rows = target_table(name).get("settings", {})
    return tuple(Setting(name=key, **row) for key, row in rows.items())


def make_plan(name: str, order: Order) -> Plan:
    """Turn an order into a platform's plan.

    Raises:
        UsageError: The platform cannot do what is asked, or the image, by what it says of itself.
        DeviceError: It rents no machine that is large enough.
    """
    # The help of the command line needs the table above only.
    from zse.deploy.deployed import RECORD, Deployment  # noqa: PLC0415
    from zse.deploy.image_check import check_image  # noqa: PLC0415

    target = find_target(name)
    _check_secrets(name, target, order)
    order = order.with_form(target.forms or ("",))
    given = take_settings(order, settings_of(name))
    table = target_table(name, order.form)
    _check_abilities(order, table.get("cannot", {}))
    if order.is_public and not table.get("always_gated"):
        order.require_keys(f"{name} --public lets anyone ask")
    plan: Plan = import_module(f"zse.deploy.targets.{name}").make_plan(order, given)
    kept = Deployment(target=name, name=plan.order.name, form=plan.order.form, details=plan.details)
    return replace(
        plan,
        target=name,
        access=f"{plan.access or _access(order, table['access'])}; {_asked(order)}",
        files={**plan.files, RECORD: kept.to_text()},
        notes=(*plan.notes, *_unread_notes(order), *check_image(plan, target)),
    )


def _unread_notes(order: Order) -> Iterator[str]:
    for one in unread_variables(order.variables):
        yield f"the server reads no variable {one.name}: {one.hint}"


def _check_abilities(order: Order, cannot: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse what a platform cannot do: what of the order may not hold, and what to say then."""
    for condition, said in cannot.items():
        name = condition.removeprefix("not ")
        if bool(getattr(order, name)) == (name == condition):
            raise UsageError(said["message"], hint=said["hint"])


def _access(order: Order, access: Mapping[str, str]) -> str:
    return access["public" if order.is_public else "private"].format(port=order.port)


def _asked(order: Order) -> str:
    """Say what the server itself asks of those who come as far as it."""
    if not order.says_who_may_ask or "ZSE_PUBLIC" in order.env:
        return "the server behind it asks for no key"
    return "and the server asks for an API key"


def _check_secrets(name: str, target: Target, order: Order) -> None:
    for use in order.secrets:
        if use.is_address and name != "terraform":
            raise UsageError(
                f"{name} knows secrets by their names", hint="Write VARIABLE=SECRET[:KEY]."
            )
        if use.key != use.variable and not target.has_secret_entries:
            raise UsageError(
                f"--secret {use.variable}: a secret of {name} is one value and has no keys",
                hint="Write VARIABLE=SECRET, one secret for each variable.",
            )
