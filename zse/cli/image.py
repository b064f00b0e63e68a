"""``zse image``: look into a finished image, check it and bring it to a registry."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zse.cli.app import App, say
from zse.cli.parameters import Json
from zse.errors import UsageError
from zse.oci.image.facts import NO_BYTE_CODE
from zse.printable import printable
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.oci.image.facts import ImageFacts
    from zse.oci.image.inspect import PlatformReport
    from zse.oci.image.verify import Expectations

Reference = Annotated[
    str, Argument(metavar="REF", help="An image reference, oci:DIR[:TAG] or tar:FILE[:TAG].")
]

app = App(help="Inspect an image, verify it, and push it to a registry.")


@app.command("inspect")
def inspect(
    reference: Reference,
    platform: Annotated[str, Option(metavar="OS/ARCH", help="Only this platform.")] = "",
    as_json: Json = False,
) -> None:
    """Show what is in an image, without pulling its layers.

    That is: model, labels, layers, sizes, how it starts, bill of materials and provenance.
    """
    from zse.oci.image.inspect import inspect_image
    from zse.oci.image.source import open_image

    with open_image(reference, auth_file=_auth_file()) as source:
        report = inspect_image(source, platform=platform)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, sort_keys=True))
        return
    typer.echo(f"digest      {report.digest}")
    for item in report.platforms:
        typer.echo("")
        _print_platform(item)


@app.command("verify")
def verify(
    reference: Reference,
    base: Annotated[
        str,
        Option(
            metavar="DIGEST|REF", help="The base it must stand on: a digest, or where the base is."
        ),
    ] = "",
    locks: Annotated[
        Path | None, Option(help="Folder of lock files that every dependency must be in.")
    ] = None,
    recipe: Annotated[str, Option(metavar="NAME", help="Use the locks of this recipe.")] = "",
    as_json: Json = False,
) -> None:
    """Check every byte of an image.

    That is digests, statements, and on request the base and the dependencies.

    The exit code is 9 when anything is not what it should be; every problem is named.
    """
    from zse.oci.errors import ImageRule
    from zse.oci.image.source import open_image
    from zse.oci.image.verify import verify_image
    from zse.oci.recipe import recipe_folder

    if recipe and locks:
        raise UsageError("--recipe and --locks both name locks", hint="Leave one of them out.")
    if locks and not locks.is_dir():
        raise UsageError(f"--locks {locks} is not a folder", hint="Name one of lock files.")
    expected = _expectations(base, recipe_folder(recipe) if recipe else locks)
    with open_image(reference, auth_file=_auth_file()) as source:
        found = verify_image(source, expected, say)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "ok": not found.problems}, indent=2))
    if found.problems:
        raise ImageRule.VERIFICATION(
            f"{reference} has {len(found.problems)} problems:\n  " + "\n  ".join(found.problems)
        )
    if not as_json:
        typer.echo(
            f"{found.digest}: {found.checked_blobs} layers, {found.checked_bytes / 1e6:.1f} MB, "
            "every digest agrees"
        )
        for check in found.checks:
            typer.echo(f"  {check}: agrees")


@app.command("sbom")
def sbom(
    reference: Reference,
    platform: Annotated[
        str, Option(metavar="OS/ARCH", help="Of this platform; the first when not given.")
    ] = "",
) -> None:
    """Print the bill of materials (SPDX) of an image.

    It is stored beside the image. Vulnerability scanners read it:
    zse image sbom llm.tar > llm.spdx.json
    """
    from zse.oci.image.inspect import read_sbom
    from zse.oci.image.source import open_image

    with open_image(reference, auth_file=_auth_file()) as source:
        document = read_sbom(source, platform=platform)
    typer.echo(json.dumps(document, indent=1))


@app.command("push")
def push(
    reference: Reference,
    name: Annotated[
        str, Argument(metavar="NAME[:TAG]", help="What it is called there: REGISTRY/NAME[:TAG].")
    ],
) -> None:
    """Push a finished image to a registry.

    Its bill of materials and provenance go with it. No byte changes, so it keeps its digest,
    which is printed.
    """
    import tempfile

    from zse.oci.image.copy import copy_image
    from zse.oci.image.source import open_image
    from zse.oci.registry.client import open_registry
    from zse.oci.registry.reference import parse_reference

    target = parse_reference(name)
    target = replace(target, tag=target.tag or "latest")
    settings = load_settings()
    folder = settings.cache_dir / "images"
    with open_image(reference, auth_file=_auth_file()) as source:
        host, repository = source.repository
        mounts = frozenset({repository} if host == target.host else ())
        folder.mkdir(parents=True, exist_ok=True)
        with (
            open_registry(target, settings.registry_auth_file, mounts=mounts) as registry,
            tempfile.TemporaryDirectory(dir=folder) as scratch,
        ):
            registry.check_push()
            digest = copy_image(source, registry, Path(scratch), say)
    say(f"pushed {target}")
    typer.echo(digest)


def _expectations(base: str, locks: Path | None) -> Expectations:
    """Read the base's layers where it is named by a place, not only by a digest."""
    from zse.oci.image.source import open_image, platform_manifests
    from zse.oci.image.verify import Expectations

    if not base or base.startswith("sha256:"):
        return Expectations(locks=locks, base=(base,) if base else ())
    with open_image(base, auth_file=_auth_file()) as source:
        _, images = platform_manifests(source)
    layers = {
        image.descriptor.digest: tuple(layer.digest for layer in image.layers) for image in images
    }
    return Expectations(locks=locks, base=tuple(layers), base_layers=layers)


def _auth_file() -> Path:
    return load_settings().registry_auth_file


def _print_platform(item: PlatformReport) -> None:
    lines = [
        ("platform", item.platform),
        *_told(item.facts),
        ("manifest", item.digest),
        ("size", f"{item.size_bytes / 1e6:.1f} MB"),
        ("created", item.created),
        ("user", item.user),
        ("starts", " ".join([*item.entrypoint, *item.command])),
        ("ports", " ".join(item.ports)),
    ]
    lines += [("env", value) for value in item.env]
    lines += [("labels", f"{name}={value}") for name, value in item.labels.items()]
    lines += [("annotation", f"{name}={value}") for name, value in item.annotations.items()]
    for layer in item.layers:
        kind = layer.media_type.rpartition("tar")[2].lstrip("+") or "plain"
        size = f"{layer.size_bytes / 1e6:8.1f} MB"
        lines.append(("layer", f"{size}  {kind:5}  {layer.digest[:19]}  {layer.comment}"))
    lines += [("statement", f"{one.artifact_type}  {one.digest}") for one in item.statements]
    if item.sbom:
        counts = ", ".join(f"{count} {kind}" for kind, count in item.sbom.items())
        lines.append(("materials", counts))
    for name, value in lines:  # an image may say anything
        typer.echo(f"{name:11} {printable(value)}")


def _told(facts: ImageFacts) -> list[tuple[str, str]]:
    """Return what an image of ours is: the lines that tell two of them apart."""
    if not facts.is_ours:
        return []
    model = " ".join(filter(None, (facts.model_name, facts.model_revision, facts.model_scheme)))
    weights = {
        "baked": "in the image",
        "volume": "mounted at /models",
        "url": f"fetched from {facts.model_url} at start",
    }.get(facts.weights, facts.weights)
    byte_code = facts.byte_code
    if byte_code == NO_BYTE_CODE:
        byte_code = "none: the image starts twice as slowly"
    lines = [
        ("model", model),
        ("sha256", facts.model_sha256),
        ("weights", weights),
        ("recipe", f"{facts.recipe}, zse {facts.version}"),
        ("device", " ".join(filter(None, (facts.device, *facts.kernels)))),
        ("byte code", byte_code),
    ]
    return [line for line in lines if line[1]]
