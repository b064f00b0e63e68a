"""Terraform: a root module that calls one of ``infra/terraform/modules``, which check it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.deploy.hcl_format import align_attributes
from zse.deploy.machines import load_catalog
from zse.deploy.order import MAX_NAME, NO_GPU
from zse.deploy.plan import Plan, cost_of, pack_note
from zse.deploy.settings import take_extra
from zse.deploy.templates import OMIT, render
from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.deploy.machines import Machine
    from zse.deploy.order import Order, SecretUse

_SOURCE = ("source", "ref")


@record
class Module:
    """One module of ``infra/terraform/modules``."""

    creates: str
    access: str
    catalog: str = ""
    """Table of its machines; empty is the one of the module's name."""
    needed: tuple[str, ...] = ()
    """Settings without which there is no plan."""
    texts: tuple[str, ...] = ()
    """Settings that may be left out."""
    lists: tuple[str, ...] = ()
    """Settings written as ``a,b``."""
    flags: tuple[str, ...] = ()
    can_be_public: bool = True
    can_mount: bool = True
    """Whether a bucket or volume can be mounted at /models."""
    needs_region: bool = True
    has_secrets: bool = True
    """Whether variables can come from secrets of the cloud."""
    max_name: int = MAX_NAME
    note: str = ""


MODULES: dict[str, Module] = {
    "gcp-cloud-run-gpu": Module(
        creates="a Cloud Run service, its service account and who may ask it",
        access="holders of an identity token that IAM lets in",
        needed=("project",),
        texts=("network", "subnetwork"),
        lists=("invokers",),
        flags=("zonal_redundancy",),
        max_name=25,
    ),
    "azure-container-apps-gpu": Module(
        creates="a container app, its environment with a GPU profile, its identity",
        access="what runs in the same environment",
        needed=("subscription_id", "resource_group_name"),
        texts=("registry_server", "registry_id", "key_vault_id", "log_analytics_workspace_id"),
        max_name=24,
        can_mount=False,
    ),
    "aws-sagemaker-async": Module(
        creates="a SageMaker endpoint, its role, and alarms that start and stop instances",
        access="holders of AWS credentials that may invoke the endpoint",
        needed=("output_bucket",),
        texts=("model_prefix", "role_arn", "kms_key_arn"),
        lists=("subnets", "security_group_ids"),
        max_name=40,
        can_be_public=False,
        can_mount=False,
        has_secrets=False,
    ),
    "aws-ecs-gpu": Module(
        creates="an ECS cluster and service, GPU instances, a load balancer, what wakes the first",
        access="the address ranges of allowed_cidrs: the server itself asks for no key",
        needed=("vpc_id", "subnet_ids", "allowed_cidrs"),
        texts=("certificate_arn",),
        lists=("subnet_ids", "allowed_cidrs", "load_balancer_subnet_ids"),
        max_name=28,
        can_mount=False,
        note="the load balancer is paid for even while nobody asks",
    ),
    "runpod-endpoint": Module(
        creates="a serverless endpoint",
        access="holders of a RunPod API key of the account",
        catalog="runpod",
        texts=("endpoint_type",),
        can_be_public=False,
        can_mount=False,
        needs_region=False,
    ),
}


def make_plan(order: Order) -> Plan:
    """Plan a root module."""
    order = order.with_form(tuple(MODULES))
    module = MODULES[order.form]
    extra = _settings(order, module)
    _check(order, module)
    catalog = load_catalog(module.catalog or order.form)
    machine = catalog.named(order.gpu) if order.gpu else catalog.smallest(order.need)
    values = {**_common(order, machine), **extra}
    text = align_attributes(render(f"terraform/{order.form}.tf", values))
    return Plan(
        target="terraform",
        order=order,
        machine=machine,
        cost=cost_of(order, machine, catalog),
        creates=(module.creates,),
        access="anyone: the server itself asks for no key" if order.is_public else module.access,
        files={"main.tf": text},
        commands=(("terraform", "init"), ("terraform", "apply")),
        notes=(
            pack_note(machine),
            *((module.note,) if module.note else ()),
            "terraform apply shows its own plan and asks",
        ),
    )


def _check(order: Order, module: Module) -> None:
    if order.gpu == NO_GPU:
        raise UsageError("the modules create GPU endpoints", hint="Leave --gpu out.")
    if order.is_public and not module.can_be_public:
        raise UsageError(f"{order.form} has no public form", hint="Leave --public out.")
    if order.is_mounted and not module.can_mount:
        raise UsageError(
            f"{order.form} mounts nothing", hint="Give s3://BUCKET/KEY as MODEL, or bake it in."
        )
    if module.needs_region and not order.region:
        raise UsageError(f"{order.form} needs a region", hint="Give --region.")
    if order.secrets and not module.has_secrets:
        raise UsageError(
            f"{order.form} has no references to secrets", hint="Give its role the right instead."
        )
    if len(order.name) > module.max_name:
        raise UsageError(
            f"{order.form} allows names of {module.max_name} characters, not {len(order.name)}",
            hint="Give a shorter --name.",
        )


def _common(order: Order, machine: Machine) -> dict[str, Any]:
    mounted = order.bucket or order.volume
    file_name = Path(order.model).name or "model.zse"
    return {
        "name": order.name,
        "image": order.image,
        "region": order.region or OMIT,
        "model_url": order.address.url if order.address else OMIT,
        "bucket": mounted or OMIT,
        "model_file": file_name if mounted else OMIT,
        "model_file_of_prefix": file_name if "model_prefix" in order.extra else OMIT,
        "machine": machine.name,
        "machines": [machine.name],
        "regions": [order.region] if order.region else OMIT,
        "registry_secret": order.registry_secret or OMIT,
        "drain_seconds": order.drain_seconds,
        "min_replicas": order.min_replicas,
        "max_replicas": order.max_replicas,
        "concurrency": order.concurrency,
        "idle_seconds": order.idle_seconds,
        "idle_minutes_in_seconds": max(1, -(-order.idle_seconds // 60)) * 60,
        "startup_seconds": order.startup_seconds,
        "port": order.port,
        "is_public": order.is_public,
        "env": dict(order.env) or OMIT,
        "secrets": {use.variable: _reference(use) for use in order.secrets} or OMIT,
    }


def _reference(use: SecretUse) -> str:
    """Return a secret as the modules write it: a name, with what the cloud adds after a colon."""
    return use.secret if use.key == use.variable else f"{use.secret}:{use.key}"


def _settings(order: Order, module: Module) -> dict[str, Any]:
    """Return the settings of ``--set`` as the values of variables, and the module's address.

    Raises:
        UsageError: One is unknown, missing or malformed.
    """
    optional = (*module.texts, *module.lists, *module.flags)
    extra = take_extra(order, (*module.needed, *optional, *_SOURCE))
    missing = [name for name in module.needed if name not in extra]
    if missing:
        raise UsageError(
            f"{order.form} needs {', '.join(missing)}", hint=f"Give --set {missing[0]}=VALUE."
        )
    values: dict[str, Any] = {name: extra.get(name, OMIT) for name in (*module.needed, *optional)}
    for name in module.lists:
        if name in extra:
            values[name] = extra[name].split(",")
    for name in module.flags:
        if name in extra:
            if extra[name] not in ("true", "false"):
                raise UsageError(f"{name}={extra[name]} is neither true nor false")
            values[name] = extra[name] == "true"
    return {**values, "source": _source(order.form, extra)}


def _source(module: str, extra: Mapping[str, str]) -> str:
    """Return where Terraform finds a module.

    Raises:
        UsageError: The modules are not beside this package, and no address is given.
    """
    base = extra.get("source")
    if base is None:
        folder = Path(__file__).resolve().parents[3] / "infra" / "terraform" / "modules"
        if not folder.is_dir():
            raise UsageError(
                "the modules are not part of an installed zse",
                hint="Give --set source=git::https://HOST/REPOSITORY.git//infra/terraform/modules.",
            )
        base = str(folder)
    ref = f"?ref={extra['ref']}" if "ref" in extra else ""
    return f"{base.rstrip('/')}/{module}{ref}"
