"""Every platform: one line a target, imported only when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from zse.deploy.deployed import RECORD, Deployment
from zse.deploy.image_check import check_image
from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from zse.deploy.deployed import Action
    from zse.deploy.order import Order
    from zse.deploy.plan import Plan
    from zse.deploy.settings import Setting
    from zse.deploy.verbs import Verb


@record
class Target:
    """One platform."""

    module: str
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
        module="zse.deploy.targets.modal",
        summary="an app for Modal's client",
        forms=("server", "class"),
        has_cpus=True,
        has_secret_entries=True,
    ),
    "runpod": Target(
        module="zse.deploy.targets.runpod",
        summary="a serverless endpoint through RunPod's API",
        forms=("load-balancer", "queue"),
    ),
    "terraform": Target(
        module="zse.deploy.targets.terraform",
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
        module="zse.deploy.targets.kubernetes",
        summary="a kustomize base with overlays, KEDA for sleep",
        forms=("scale-to-zero", "always-on"),
        has_cpus=True,
        has_secret_entries=True,
    ),
    "compose": Target(
        module="zse.deploy.targets.compose",
        summary="one machine with Docker, CPU or GPU",
        has_cpus=True,
        follows_image=True,
    ),
    "railway": Target(
        module="zse.deploy.targets.railway",
        summary="a CPU service on Railway",
        has_gpus=False,
        has_cpus=True,
    ),
    "render": Target(
        module="zse.deploy.targets.render",
        summary="a CPU service on Render",
        has_gpus=False,
        has_cpus=True,
    ),
    "vast": Target(module="zse.deploy.targets.vast", summary="a machine from Vast's market"),
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
    found: tuple[Setting, ...] = getattr(import_module(find_target(name).module), "SETTINGS", ())
    return found


def make_plan(name: str, order: Order) -> Plan:
    """Turn an order into a platform's plan.

    Raises:
        UsageError: The platform cannot do what is asked.
        DeviceError: It rents no machine that is large enough.
        UsageError: The image cannot do it, by what it says of itself.
    """
    target = find_target(name)
    _check_secrets(name, target, order)
    plan: Plan = import_module(target.module).make_plan(order)
    kept = Deployment(target=name, name=plan.order.name, form=plan.order.form, details=plan.details)
    return replace(
        plan,
        files={**plan.files, RECORD: kept.to_text()},
        notes=(*plan.notes, *check_image(plan, target)),
    )


def make_action(verb: Verb, deployed: Deployment, *, follows: bool = False) -> Action:
    """Say how a platform does what a verb says.

    Raises:
        NotFoundError: It takes an identifier that is not known.
    """
    module = import_module(find_target(deployed.target).module)
    action: Action = module.make_action(verb, deployed, follows=follows)
    return action


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
