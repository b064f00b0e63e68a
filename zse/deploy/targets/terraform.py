"""Terraform: a root module and the module that it calls, copied from ``infra/terraform/modules``.

What is written needs nothing of this machine: it can be committed, moved and applied elsewhere.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zse
from zse.deploy.machines import load_catalog
from zse.deploy.order import MAX_NAME
from zse.deploy.plan import Plan, cost_of, pack_notes
from zse.deploy.tables import target_table
from zse.deploy.templates import OMIT, render
from zse.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.deploy.machines import Machine
    from zse.deploy.order import Order, SecretUse

_DETAILS = ("project", "resource_group_name")
_PACKAGE = Path(zse.__file__).parent
_ROOTS = (_PACKAGE / "terraform", _PACKAGE.parent / "infra" / "terraform" / "modules")
"""Where the modules lie: in an installed zse, and in a checkout."""
# A name or a quoted key, and a value that ends on its line.
_ATTRIBUTE = re.compile(r'( *)([A-Za-z_]\w*|"(?:[^"\\]|\\.)*") = (.*[^\[{(])')


def make_plan(order: Order, given: dict[str, Any]) -> Plan:
    module = target_table("terraform", order.form)
    if len(order.name) > module.get("max_name", MAX_NAME):
        raise UsageError(
            f"{order.form} allows names of {module['max_name']} characters, not {len(order.name)}",
            hint="Give a shorter --name.",
        )
    catalog = load_catalog(module.get("catalog", order.form))
    machine = catalog.named(order.gpu) if order.gpu else catalog.smallest(order.need)
    absent = dict.fromkeys(module["settings"], OMIT)
    values = {**absent, **_common(order, machine), **given}
    is_elsewhere = "source" in given
    values["source"] = _source(given, order.form) if is_elsewhere else f"./modules/{order.form}"
    text = align_attributes(render(f"terraform/{order.form}.tf", values))
    return Plan(
        order=order,
        machine=machine,
        cost=cost_of(order, machine.usd_per_hour, catalog),
        creates=(module["creates"],),
        files={"main.tf": text, **({} if is_elsewhere else module_files(order.form))},
        commands=(("terraform", "init"), ("terraform", "apply")),
        notes=(
            *pack_notes(order, machine),
            *((module["note"],) if "note" in module else ()),
            "terraform apply shows its own plan and asks",
        ),
        details={
            **({"region": order.region} if order.region else {}),
            **{name: given[name] for name in _DETAILS if name in given},
        },
    )


def _common(order: Order, machine: Machine) -> dict[str, Any]:
    mounted = order.bucket or order.volume
    file_name = Path(order.model).name or "model.zse"
    return {
        **vars(order),
        "region": order.region or OMIT,
        "model_url": order.address.url if order.address else OMIT,
        "bucket": mounted or OMIT,
        "model_file": file_name if mounted else OMIT,
        "model_file_of_prefix": file_name if "model_prefix" in order.extra else OMIT,
        "machine": machine.name,
        "machines": [machine.name],
        "regions": [order.region] if order.region else OMIT,
        "registry_secret": order.registry_secret or OMIT,
        "idle_minutes_in_seconds": max(1, -(-order.idle_seconds // 60)) * 60,
        "env": dict(order.env) or OMIT,
        "secrets": {use.variable: _reference(use) for use in order.secrets} or OMIT,
    }


def _reference(use: SecretUse) -> str:
    """Return a secret as the modules write it: a name, with what the cloud adds after a colon."""
    return use.secret if use.key == use.variable else f"{use.secret}:{use.key}"


def _source(given: Mapping[str, Any], module: str) -> str:
    ref = f"?ref={given['ref']}" if "ref" in given else ""
    return f"{given['source'].rstrip('/')}/{module}{ref}"


def module_files(module: str) -> dict[str, str]:
    """Return a module's files, below the folder of the root module.

    Raises:
        NotFoundError: The modules are not part of this zse.
    """
    folder = next((root / module for root in _ROOTS if (root / module).is_dir()), None)
    if folder is None:
        raise NotFoundError(
            f"the Terraform module {module} is not part of this zse",
            hint="Give --set source=ADDRESS --set ref=VERSION of a repository that holds it.",
        )
    return {
        f"modules/{module}/{path.name}": path.read_text(encoding="utf-8")
        for path in sorted([*folder.glob("*.tf"), *folder.glob("*.md")])
    }


def align_attributes(text: str) -> str:
    """Line up the equals signs of neighbouring attributes, so that ``terraform fmt`` passes it."""
    lines: list[str] = []
    for indent, run in groupby(text.splitlines(), key=_indent_of_attribute):
        if indent is None:
            lines += run
            continue
        parts = [match for match in map(_ATTRIBUTE.fullmatch, run) if match]
        width = max(len(match[2]) for match in parts)
        lines += [f"{match[1]}{match[2]:<{width}} = {match[3]}" for match in parts]
    return "\n".join(lines) + "\n"


def _indent_of_attribute(line: str) -> str | None:
    match = _ATTRIBUTE.fullmatch(line)
    return match[1] if match else None
