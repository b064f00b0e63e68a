"""`zse doctor`: what is wrong with this machine, its settings, a model or an image."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Exit

from zse.cli.app import App, say
from zse.cli.parameters import Json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.doctor.findings import Check, Finding

app = App()
_MARKS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


@app.command("doctor")
def command(
    subject: Annotated[
        str,
        Argument(
            metavar="[MODEL|IMAGE]",
            help="A model, or an image (oci:DIR, tar:FILE, REGISTRY/NAME:TAG), to look at too.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Check this machine, and say how to fix what is wrong. The exit code is 1 if something is."""
    found = []
    for finding in _findings(subject):
        found.append(finding)
        if not as_json:
            _show(finding)
    problems = sum(finding.status == "problem" for finding in found)
    if as_json:
        typer.echo(json.dumps({"ok": not problems, "findings": list(map(asdict, found))}, indent=2))
    elif problems:
        say(f"{problems} {'problem' if problems == 1 else 'problems'}")
    raise Exit(code=1 if problems else 0)


def _findings(subject: str) -> Iterator[Finding]:
    from zse.doctor import configuration, machine
    from zse.doctor.findings import guarded, problem
    from zse.errors import ZSEError
    from zse.option import with_values
    from zse.settings import Settings, load_settings

    try:
        settings = load_settings()
    except ZSEError as error:
        yield problem("settings", error.message, error.hint)
        settings = Settings()  # the rest is looked at as if nothing had been set
    if subject and not _is_image(subject):
        settings = with_values(settings, {"model": subject})
    checks: list[tuple[str, Check]] = [
        ("zse", machine.check_installation),
        ("settings", configuration.check_variables),
        ("memory", machine.check_memory),
        ("limits", machine.check_limits),
        ("cache", machine.check_cache),
        ("backends", machine.check_backends),
        ("address", configuration.check_address),
        ("access", configuration.check_access),
        ("tls", configuration.check_certificates),
        ("network", configuration.check_names),
    ]
    if _is_image(subject):
        from zse.doctor.image import check_image

        checks.append(("image", partial(check_image, subject)))
    else:
        from zse.doctor.model import check_model

        checks.append(("model", check_model))
    for name, check in checks:
        yield from guarded(name, settings, check)


def _is_image(subject: str) -> bool:
    """Whether a word means an image: a layout, a tar file, or a name with a registry or a tag."""
    from pathlib import Path

    if subject.startswith(("oci:", "tar:")):
        return True
    if "://" in subject or subject.startswith((".", "/", "~")) or Path(subject).exists():
        return False
    registry, slash, rest = subject.partition("/")
    return bool(slash) and (":" in rest or "@sha256:" in rest or "." in registry)


def _show(finding: Finding) -> None:
    from zse.printable import printable

    typer.echo(f"{_MARKS[finding.status]:8} {finding.check:10} {printable(finding.found)}")
    if finding.fix:
        typer.echo(f"{'':19} {printable(finding.fix)}")
