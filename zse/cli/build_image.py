"""``zse build-image``: write an OCI image around a model, without Docker."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zse.cli.model_argument import MODEL
from zse.errors import UsageError

if TYPE_CHECKING:
    from zse.oci.image.options import BuildOptions, BuiltImage
    from zse.oci.recipe import Recipe
    from zse.settings import Settings

_RECIPES_TAKEN = {
    "cpu": "recipe cpu: the image serves on CPUs; for NVIDIA GPUs say --recipe cuda or --gpu ARCH",
    "cuda": "recipe cuda, because of {given}: the image serves on NVIDIA GPUs",
}


@click.command("build-image")
@click.argument("model", type=MODEL)
@click.option("--name", required=True, metavar="NAME[:TAG]", help="Name of the image.")
@click.option("--output", default="", metavar="oci:DIR|tar:FILE", help="Where to write the image.")
@click.option("--force", is_flag=True, help="Replace the tar file of --output.")
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
@click.option(
    "--recipe",
    "recipe_name",
    help="Image recipe: cpu, cuda or cuda-dev.  [cuda with --gpu or --kernels, else cpu]",
)
@click.option(
    "--platform",
    "platforms",
    metavar="OS/ARCH[,...]",
    help="linux/amd64, linux/arm64 or both, in one index; the recipe's first when not given.",
)
@click.option(
    "--kernels",
    default="",
    metavar="PLACE",
    help="Kernel packs: a folder, oci:DIR or REGISTRY/REPOSITORY.  [cache, release, triton]",
)
@click.option("--gpu", "gpus", multiple=True, metavar="ARCH", help="Only these of the recipe's.")
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
@click.option("--max-size", default="", metavar="SIZE", help="Fail when larger: 250MB, 2GiB.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=FILE|env:VAR",
    help="For pip alone, never for the image: index-url, extra-index-url, proxy or netrc.",
)
@click.option(
    "--attest/--no-attest",
    default=True,
    show_default=True,
    help="Store a bill of materials (SPDX) and provenance (SLSA) beside the image.",
)
@click.option("--allow-no-tokenizer", is_flag=True, help="Take a model that has no tokenizer.")
@click.option("--no-cache", is_flag=True, help="Build every layer anew.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(**flags: Any) -> None:
    """Write an OCI image that serves MODEL.

    MODEL is a .zse file, a checkpoint, "tiny" or an address (s3://, hf://, https://). Nothing runs
    in the image, no daemon and no root are needed, and the same inputs give the same digest.
    """
    from zse.cli.image_kernels import build_image_packs, find_image_packs
    from zse.cli.stopping import clean_stop
    from zse.cli.transfer_display import opening_progress, staged_progress
    from zse.engine.opening import locate_model
    from zse.oci.image.build import build_image
    from zse.oci.image.options import ModelMode
    from zse.oci.image.preflight import check_model, check_options, check_places
    from zse.settings import load_settings
    from zse.store.cache_room import filling

    settings = load_settings()
    recipe = _recipe(flags)
    options = _options(flags, settings)
    check_options(recipe, options)
    check_places(recipe, options)
    packs = find_image_packs(recipe.kernels.gpu, flags["kernels"], settings, _say)
    with clean_stop(), filling(settings.cache_dir, "images"):
        if options.model_mode is ModelMode.BAKED:
            with opening_progress() as told:
                model = locate_model(flags["model"], quant=flags["quant"], progress=told)
            facts = _model_facts(model, allow_no_tokenizer=flags["allow_no_tokenizer"])
            options = replace(options, model=model, model_facts=facts)
            check_model(options)
        kernels = build_image_packs(packs, settings.cache_dir, _say)
        options = replace(options, kernels=kernels)
        with staged_progress() as progress:
            built = build_image(recipe, options, _say, progress)
    click.echo(_as_json(built) if flags["as_json"] else built.digest)
    _say(_summary(built))
    for words in dict.fromkeys(words for it in built.platforms for words in it.warnings):
        _say(f"warning: {words}")
    for step in built.next_steps:
        _say(f"{step.purpose}:\n  {step.command}")


def _options(flags: dict[str, Any], settings: Settings) -> BuildOptions:
    """Return what was said, before the model and the kernels are found.

    Raises:
        UsageError: A size or a secret is malformed.
    """
    from zse.oci.image.options import BuildOptions, ModelMode
    from zse.oci.layout.layer import Compression
    from zse.oci.python.secrets import read_secrets
    from zse.oci.sizes import parse_size

    mode = ModelMode(flags["model_mode"])
    return BuildOptions(
        name=flags["name"],
        cache_dir=settings.cache_dir / "images",
        platforms=_platforms(flags["platforms"]),
        model_mode=mode,
        model_url=flags["model"] if mode is ModelMode.URL else "",
        base=flags["base"],
        output=flags["output"],
        is_forced=flags["force"],
        is_pushed=flags["push"],
        is_attested=flags["attest"],
        max_size_bytes=parse_size(flags["max_size"]) if flags["max_size"] else 0,
        mirror=flags["mirror"] or settings.debian_mirror,
        compression=Compression(flags["compression"]),
        is_lock_updated=flags["update_lock"],
        locks=flags["locks"],
        is_cached=not flags["no_cache"],
        epoch_seconds=settings.source_date_epoch,
        auth_file=Path(settings.registry_auth_file),
        secrets=read_secrets(flags["secrets"]),
    )


def _recipe(flags: dict[str, Any]) -> Recipe:
    """Return the recipe, with the GPU architectures that were asked for.

    Raises:
        UsageError: An architecture is unknown, or the recipe carries no kernels.
        NotFoundError: There is no such recipe.
    """
    from zse.kernels.targets import target_named
    from zse.oci.recipe import KernelRecipe, load_recipe, recipe_folder

    gpus = tuple(target_named(name).name for name in dict.fromkeys(flags["gpus"]))
    given = "--gpu" if gpus else "--kernels" if flags["kernels"] else ""
    recipe = load_recipe(recipe_folder(flags["recipe_name"] or ("cuda" if given else "cpu")))
    if given and not recipe.kernels.gpu:
        raise UsageError(
            f"the recipe {recipe.name} carries no kernel packs, which {given} is about",
            hint=f"Leave out {given}, or choose --recipe cuda.",
        )
    if not flags["recipe_name"]:
        _say(_RECIPES_TAKEN[recipe.name].format(given=given))
    return replace(recipe, kernels=KernelRecipe(gpu=gpus)) if gpus else recipe


def _platforms(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _model_facts(model: Path, *, allow_no_tokenizer: bool) -> dict[str, str]:
    """Read from the file's own header what is said of it in the bill of materials.

    Raises:
        NoTokenizerError: It holds no tokenizer, and nobody said that it need not.
    """
    from zse.format.reader import ZSEReader
    from zse.text.tokenizer import check_tokenizer

    with ZSEReader(model) as reader:
        if not allow_no_tokenizer:
            check_tokenizer(reader, model.name)
        provenance = reader.header.provenance
    source, options = str(provenance.get("source", "")), provenance.get("options") or {}
    return {
        "name": source or "model",
        "version": str(provenance.get("revision", "")),
        "source": source,
        "quantization": str(options.get("quantization", "")),
        "converted by": str(provenance.get("tool", "")),
    }


def _say(words: str) -> None:
    click.echo(words, err=True)


def _summary(built: BuiltImage) -> str:
    place = f" in {built.output}" if built.output else ""
    sizes = [
        f"{(it.size_bytes - it.model_size_bytes) / 1e6:.1f} MB image + "
        f"{it.model_size_bytes / 1e6:.1f} MB model"
        for it in built.platforms
    ]
    if len(sizes) > 1:
        sizes = [f"{it.platform} {size}" for it, size in zip(built.platforms, sizes, strict=True)]
    return f"{built.reference}{place}: {', '.join(sizes)}"


def _as_json(built: BuiltImage) -> str:
    return json.dumps(
        {
            "reference": built.reference,
            "digest": built.digest,
            "size_bytes": built.size_bytes,
            "model_size_bytes": built.model_size_bytes,
            "platforms": [asdict(platform) for platform in built.platforms],
            "output": built.output,
            "next_steps": [asdict(step) for step in built.next_steps],
        },
        indent=2,
    )
