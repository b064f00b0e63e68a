"""``zse build-image``: write an OCI image around a model, without Docker."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from zse.oci.build import BuiltImage
    from zse.settings import Settings


@click.command("build-image")
@click.argument("model")
@click.option("--name", required=True, metavar="NAME[:TAG]", help="Name of the image.")
@click.option("--output", default="", metavar="oci:DIR|tar:FILE", help="Where to write the image.")
@click.option("--push", is_flag=True, help="Send it to the registry that NAME says.")
@click.option(
    "--base",
    default="",
    metavar="BASE",
    help="debian[:SUITE] (default), an image reference, oci:DIR[:TAG] or rootfs:TAR.",
)
@click.option(
    "--model",
    "model_mode",
    type=click.Choice(["baked", "volume", "url"]),
    default="baked",
    show_default=True,
    help="Put the model in, expect it mounted at /models, or fetch it from MODEL at start.",
)
@click.option("--quant", default=None, help="How to quantize a MODEL that is not a .zse file.")
@click.option("--recipe", "recipe_name", default="cpu", show_default=True, help="Image recipe.")
@click.option("--mirror", default="", metavar="URL", help="Debian mirror; apt's when not given.")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "gzip", "none"]),
    default="zstd",
    show_default=True,
    help="How layers are stored; the model is always plain.",
)
@click.option("--update-lock", is_flag=True, help="Resolve packages and wheels again.")
@click.option("--locks", type=click.Path(path_type=Path), help="Folder of the lock files.")
@click.option("--no-cache", is_flag=True, help="Build every layer anew.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**flags: Any) -> None:
    """Write an OCI image that serves MODEL.

    MODEL is a .zse file, a checkpoint, "tiny" or an s3:// address. Nothing runs in the image, no
    daemon and no root are needed, and the same inputs give the same digest.
    """
    from zse.oci.build import BuildOptions, ModelMode, build_image
    from zse.oci.layer import Compression
    from zse.oci.recipe import load_recipe, recipe_folder
    from zse.settings import load_settings

    settings = load_settings()
    mode = ModelMode(flags["model_mode"])
    with ExitStack() as stack:
        model = _local_model(flags, settings, stack) if mode is ModelMode.BAKED else None
        built = build_image(
            load_recipe(recipe_folder(flags["recipe_name"])),
            BuildOptions(
                name=flags["name"],
                cache_dir=settings.cache_dir / "images",
                model=model,
                model_mode=mode,
                model_url=flags["model"] if mode is ModelMode.URL else "",
                base=flags["base"],
                output=flags["output"],
                is_pushed=flags["push"],
                mirror=flags["mirror"] or settings.debian_mirror,
                compression=Compression(flags["compression"]),
                is_lock_updated=flags["update_lock"],
                locks=flags["locks"],
                is_cached=not flags["no_cache"],
                epoch_seconds=settings.source_date_epoch,
                auth_file=Path(settings.registry_auth_file),
            ),
            _say,
        )
    click.echo(_as_json(built) if flags["as_json"] else built.digest)
    _say(_summary(built))


def _local_model(flags: dict[str, Any], settings: Settings, stack: ExitStack) -> Path:
    """Return MODEL as a local .zse file: fetched, converted or as it is."""
    name: str = flags["model"]
    if "://" in name:
        from zse.store import fetch

        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_made(settings.cache_dir)))
        target = Path(folder) / "model.zse"
        _say(f"fetching {name}")
        fetch(name, target)
        return target
    ensure_zse = import_module("zse.quantize.builtin").ensure_zse
    path: Path = ensure_zse(name, quant=flags["quant"], cache_dir=settings.cache_dir)
    return path


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _say(words: str) -> None:
    click.echo(words, err=True)


def _summary(built: BuiltImage) -> str:
    image_mb = (built.size_bytes - built.model_size_bytes) / 1e6
    model_mb = built.model_size_bytes / 1e6
    place = f" in {built.output}" if built.output else ""
    return f"{built.reference}{place}: {image_mb:.1f} MB image + {model_mb:.1f} MB model"


def _as_json(built: BuiltImage) -> str:
    return json.dumps(
        {
            "reference": built.reference,
            "digest": built.digest,
            "size_bytes": built.size_bytes,
            "model_size_bytes": built.model_size_bytes,
            "layers": [asdict(layer) for layer in built.layers],
            "output": built.output,
        },
        indent=2,
    )
